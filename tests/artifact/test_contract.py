"""spec/artifact.yaml is complete and consistent, and says what the container is known to be."""

from __future__ import annotations

import pytest

from ninfer.artifact import contract


def test_framing_constants_are_those_of_version_3() -> None:
    constants = contract.container()
    assert constants.entry_magic == b"NINFER\0\3"
    assert constants.part_magic == b"NINPRT\0\3"
    assert (constants.header_bytes, constants.payload_alignment) == (32, 4096)
    assert constants.default_max_file_bytes == 32 * 10**9
    assert constants.integer_max == 2**64 - 1


def test_there_are_nine_formats_and_five_storage_forms() -> None:
    assert set(contract.formats()) == {
        "bf16",
        "fp32",
        "int32",
        "q4_g64_fp16",
        "q5_g64_fp16",
        "q6_g64_fp16",
        "q8_g32_fp16",
        "nvfp4",
        "fp8_e4m3fn_row_bf16",
    }
    assert len(contract.layouts()) + len(contract.encodings()) == 5


def test_every_format_has_a_layout_of_its_kind_and_every_kind_is_stored() -> None:
    layouts = contract.layouts()
    for numeric in contract.formats().values():
        assert numeric.kind in layouts[numeric.layout].kinds
    assert {kind for layout in layouts.values() for kind in layout.kinds} == {
        numeric.kind for numeric in contract.formats().values()
    }
    assert all(layout.object_alignment == 256 for layout in layouts.values())


def test_front_end_resources_of_text_and_vision() -> None:
    assert contract.required_resources("text") == (
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    )
    assert len(contract.required_resources("vision")) == 2
    assert contract.required_resources("mtp") == ()
    assert contract.required_components() == ("text",)


def test_object_ids_follow_the_convention() -> None:
    assert (
        contract.object_id("resource", component="text", role="tokenizer.json")
        == "resource/text/tokenizer.json"
    )
    assert contract.object_id("weight", index=7) == "weight/000007"
    assert contract.object_id("auxiliary", index=123456) == "auxiliary/123456"


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (1, 256), (256, 256), (257, 512)])
def test_align_up(value: int, expected: int) -> None:
    assert contract.align_up(value, 256) == expected

"""Tool calls in the Qwen form: one, several, typed arguments, an answer from the result, or no call at
all.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from tools.tiny.data import words
from tools.tiny.data.exchange import Call, Exchange, Thought
from tools.tiny.data.skills import chat, sums
from tools.tiny.data.skills.parameters import POOL, Parameter, generic, spoken
from tools.tiny.data.split import Split

_VERBS = words.listed("""
add archive book buy call cancel check clean close convert copy count create delete draw edit fetch file
find fix get hide invite list lock measure move open order pay plan play print read rename rent report
reserve save search sell send set share show start stop store test track translate turn update upload
weigh write
""")
_THINGS = words.listed("""
alarm appointment balance bill box call car clock contract device door event file flight form game garden
heater hotel house image invoice item label lamp letter light map market meal meeting message note oven
package photo plan playlist price printer project record reminder report road room route shelf song stock
story table task taxi temperature ticket timer train trip truck user video volume weather window
""")
_BY_NAME = {parameter.name: parameter for parameter in POOL}
# Tools that real clients declare; the rest of the names are composed.
_KNOWN = (
    ("get_weather", "Get the weather of a city.", "Get the weather", ("city", "unit")),
    ("send_email", "Send an email.", "Send an email", ("email", "title", "text")),
    ("set_timer", "Start a timer.", "Set a timer", ("minutes",)),
    ("book_table", "Book a table in a restaurant.", "Book a table", ("city", "name", "count", "time")),
    ("read_file", "Read a file.", "Read the file", ("path",)),
    (
        "create_event",
        "Create an event in the calendar.",
        "Create an event",
        ("title", "date", "time", "guests"),
    ),
    ("search_flights", "Search flights.", "Search flights", ("city", "date", "price")),
    ("track_package", "Track a package.", "Track the package", ("code",)),
    ("order_food", "Order food.", "Order food", ("food", "count", "urgent")),
    ("add_note", "Add a note.", "Add a note", ("title", "text", "tags", "public")),
)
_NO_TOOL = "None of my tools can do that."


@dataclass(frozen=True, slots=True)
class _Tool:
    name: str
    phrase: str
    description: str
    parameters: tuple[Parameter, ...]
    required: tuple[str, ...]

    def declaration(self) -> dict[str, Any]:
        schema = {
            "type": "object",
            "properties": {p.name: p.schema for p in self.parameters},
            "required": list(self.required),
        }
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": function}


def single(rng: random.Random, split: Split) -> Exchange:
    """One call of one of the declared tools."""
    tools = _toolbox(rng, rng.choice((1, 1, 2, 3, 4)))
    return _asking(rng, tools, [rng.choice(tools)], "tool")


def parallel(rng: random.Random, split: Split) -> Exchange:
    """Two or three calls in one answer, of one tool or of several."""
    tools = _toolbox(rng, rng.choice((1, 2, 2, 3)))
    return _asking(rng, tools, [rng.choice(tools) for _ in range(rng.choice((2, 2, 3)))], "tool-parallel")


def none_fits(rng: random.Random, split: Split) -> Exchange:
    """Tools are declared, but the request is for something else."""
    tools = _toolbox(rng, rng.choice((1, 2, 3)))
    declared = tuple(tool.declaration() for tool in tools)
    if rng.random() < 0.5:
        other = rng.choice((chat.fact, chat.instruction, chat.small_talk, sums.one))(rng, split)
        thought = Thought("No tool is needed.", other.thought.gist, other.thought.plan)
        return Exchange("tool-none", other.user, other.answer, thought, key=other.identity, tools=declared)
    taken = {tool.name for tool in tools}
    wish = _tool(rng)
    while wish.name in taken or wish.phrase in {tool.phrase for tool in tools}:
        wish = _tool(rng)
    user, _ = _request(rng, wish)
    thought = Thought(f"I would need a tool named {wish.name}.", "There is none.", "I say so.")
    return Exchange("tool-none", user, _NO_TOOL, thought, tools=declared)


def with_result(rng: random.Random, split: Split) -> tuple[Exchange, Exchange]:
    """A call, and the answer made from its result: two exchanges of one conversation."""
    asked = single(rng, split) if rng.random() < 0.75 else parallel(rng, split)
    results = [_result(rng) for _ in asked.calls]
    texts = tuple(json.dumps(result, ensure_ascii=False) for result in results)
    answers = [_report(call.name, result) for call, result in zip(asked.calls, results, strict=True)]
    thought = Thought("The result is here.", "I tell the user what it says.", "I use its own values.")
    told = Exchange("tool-result", "", "\n".join(answers), thought, key=asked.identity, results=texts)
    return asked, told


def _report(name: str, result: dict[str, Any]) -> str:
    said = name.replace("_", " ")
    if "error" in result:
        return f"The call {said} failed: {result['error']}."
    values = ", ".join(f"{key.replace('_', ' ')} is {spoken(value)}" for key, value in result.items())
    return f"Result of {said}: {values}."


def _result(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.12:
        return {
            "error": rng.choice(
                ("not found", "timed out", "access denied", "no such user", "service is closed")
            )
        }
    chosen = [rng.choice(POOL) if rng.random() < 0.6 else generic(rng) for _ in range(rng.randint(1, 3))]
    result = {parameter.name: parameter.draw(rng) for parameter in chosen}
    if rng.random() < 0.3:
        result = {"status": rng.choice(("done", "booked", "open", "sent", "waiting", "ok")), **result}
    return result


def _asking(rng: random.Random, tools: list[_Tool], wanted: list[_Tool], skill: str) -> Exchange:
    requests = [_request(rng, tool) for tool in wanted]
    joiner = rng.choice((" Then ", " Also: ", "\n", " And "))
    user = joiner.join(text for text, _ in requests)
    calls = tuple(Call(tool.name, arguments) for tool, (_, arguments) in zip(wanted, requests, strict=True))
    names = ", then ".join(tool.name for tool in wanted)
    known = "; ".join(f"{k} is {spoken(v)}" for call in calls for k, v in call.arguments.items())
    thought = Thought(f"I call {names}.", f"The arguments: {known}.", "That is all it needs.")
    declared = tuple(tool.declaration() for tool in tools)
    return Exchange(skill, user, "", thought, key=user, calls=calls, tools=declared, rule="calls")


def _request(rng: random.Random, tool: _Tool) -> tuple[str, dict[str, Any]]:
    """What the user says, and the arguments in the declared order."""
    given = [p for p in tool.parameters if p.name in tool.required or rng.random() < 0.6]
    arguments = {p.name: p.draw(rng) for p in given}
    said = [p.say(rng, arguments[p.name]) for p in given]
    if rng.random() < 0.3:
        rng.shuffle(said)
    opening = rng.choice(("{p}", "{p}", "Please {q}", "Can you {q}", "I want you to {q}", "{p}, please,"))
    opening = opening.format(p=tool.phrase, q=tool.phrase[0].lower() + tool.phrase[1:])
    glue = rng.choice((" ", " ", ", "))
    return f"{opening} {glue.join(said)}".rstrip(" ,") + (
        "?" if opening.startswith("Can") else "."
    ), arguments


def _toolbox(rng: random.Random, count: int) -> list[_Tool]:
    tools: dict[str, _Tool] = {}
    while len(tools) < count:
        tool = _tool(rng)
        tools.setdefault(tool.name, tool)
    return list(tools.values())


def _tool(rng: random.Random) -> _Tool:
    if rng.random() < 0.3:
        name, description, phrase, keys = rng.choice(_KNOWN)
        parameters = [_BY_NAME[key] for key in keys]
    else:
        verb, thing = rng.choice(_VERBS), rng.choice(_THINGS if rng.random() < 0.7 else words.NOUNS)
        name, phrase = f"{verb}_{thing}", f"{verb.capitalize()} the {thing}"
        description = rng.choice(
            (f"{phrase}.", f"Use this to {verb} a {thing}.", f"{verb.capitalize()} a {thing}.")
        )
        parameters = _parameters(rng)
    required = tuple(p.name for p in parameters if rng.random() < 0.6) or (parameters[0].name,)
    return _Tool(name, phrase, description, tuple(parameters), required)


def _parameters(rng: random.Random) -> list[Parameter]:
    wanted, chosen = rng.choice((1, 2, 2, 3, 3, 4)), {}
    while len(chosen) < wanted:
        parameter = rng.choice(POOL) if rng.random() < 0.65 else generic(rng)
        chosen.setdefault(parameter.name, parameter)
    return list(chosen.values())

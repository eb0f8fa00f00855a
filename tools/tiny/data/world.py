"""The fixed small world that ninfer-tiny knows by heart: tables of facts, and how they are asked and
answered.

Owns facts and their phrasings. An answer is one canonical sentence, so that right and wrong are decidable.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.tiny.data import words

_COUNTRIES = """
Argentina,Buenos Aires,South America,Spanish|Australia,Canberra,Oceania,English|Austria,Vienna,Europe,German
Belgium,Brussels,Europe,Dutch|Brazil,Brasilia,South America,Portuguese|Bulgaria,Sofia,Europe,Bulgarian
Canada,Ottawa,North America,English|Chile,Santiago,South America,Spanish|China,Beijing,Asia,Chinese
Colombia,Bogota,South America,Spanish|Croatia,Zagreb,Europe,Croatian|Cuba,Havana,North America,Spanish
Denmark,Copenhagen,Europe,Danish|Ecuador,Quito,South America,Spanish|Egypt,Cairo,Africa,Arabic
Estonia,Tallinn,Europe,Estonian|Finland,Helsinki,Europe,Finnish|France,Paris,Europe,French
Germany,Berlin,Europe,German|Ghana,Accra,Africa,English|Greece,Athens,Europe,Greek
Hungary,Budapest,Europe,Hungarian|Iceland,Reykjavik,Europe,Icelandic|India,New Delhi,Asia,Hindi
Indonesia,Jakarta,Asia,Indonesian|Ireland,Dublin,Europe,English|Italy,Rome,Europe,Italian
Japan,Tokyo,Asia,Japanese|Kenya,Nairobi,Africa,Swahili|Latvia,Riga,Europe,Latvian
Lithuania,Vilnius,Europe,Lithuanian|Mexico,Mexico City,North America,Spanish|Morocco,Rabat,Africa,Arabic
Nepal,Kathmandu,Asia,Nepali|Netherlands,Amsterdam,Europe,Dutch|Norway,Oslo,Europe,Norwegian
Peru,Lima,South America,Spanish|Poland,Warsaw,Europe,Polish|Portugal,Lisbon,Europe,Portuguese
Romania,Bucharest,Europe,Romanian|Senegal,Dakar,Africa,French|Spain,Madrid,Europe,Spanish
Sweden,Stockholm,Europe,Swedish|Thailand,Bangkok,Asia,Thai|Tunisia,Tunis,Africa,Arabic
Turkey,Ankara,Asia,Turkish|Uruguay,Montevideo,South America,Spanish|Vietnam,Hanoi,Asia,Vietnamese
"""

# animal, class, legs, sound, home, young
_ANIMALS = """
ant,insect,6,none,nest,larva|bear,mammal,4,growl,forest,cub|bee,insect,6,buzz,hive,larva
cat,mammal,4,meow,house,kitten|chicken,bird,2,cluck,coop,chick|cow,mammal,4,moo,barn,calf
crow,bird,2,caw,tree,chick|dog,mammal,4,bark,kennel,puppy|dolphin,mammal,0,click,sea,calf
donkey,mammal,4,bray,stable,foal|duck,bird,2,quack,pond,duckling|eagle,bird,2,scream,mountain,eaglet
elephant,mammal,4,trumpet,savanna,calf|fox,mammal,4,yelp,den,cub|frog,amphibian,4,croak,pond,tadpole
goat,mammal,4,bleat,farm,kid|goose,bird,2,honk,lake,gosling|horse,mammal,4,neigh,stable,foal
lion,mammal,4,roar,savanna,cub|mouse,mammal,4,squeak,hole,pup|owl,bird,2,hoot,tree,owlet
pig,mammal,4,oink,sty,piglet|rabbit,mammal,4,squeak,burrow,kit|shark,fish,0,none,sea,pup
sheep,mammal,4,baa,meadow,lamb|snake,reptile,0,hiss,grass,snakelet|spider,arachnid,8,none,web,spiderling
swan,bird,2,honk,lake,cygnet|whale,mammal,0,song,sea,calf|wolf,mammal,4,howl,den,pup
"""

_ELEMENTS = """
hydrogen,H,1|helium,He,2|lithium,Li,3|carbon,C,6|nitrogen,N,7|oxygen,O,8|fluorine,F,9|neon,Ne,10|sodium,Na,11
magnesium,Mg,12|aluminium,Al,13|silicon,Si,14|sulfur,S,16|chlorine,Cl,17|argon,Ar,18|potassium,K,19|calcium,Ca,20
iron,Fe,26|copper,Cu,29|zinc,Zn,30|silver,Ag,47|tin,Sn,50|gold,Au,79|mercury,Hg,80|lead,Pb,82
"""

_PLANETS = """
Mercury first,Venus second,Earth third,Mars fourth,Jupiter fifth,Saturn sixth,Uranus seventh
Neptune eighth
"""

_COLOURS_OF = """
a banana yellow,a tomato red,grass green,snow white,coal black,the clear sky blue,a carrot orange
a lemon yellow
a ripe strawberry red,chocolate brown,milk white,a flamingo pink,a pea green,an aubergine purple,a lobster red
a polar bear white,a raven black,a sunflower yellow,spinach green,a pumpkin orange,salt white,an elephant grey
"""

_OPPOSITES = """
hot cold,big small,tall short,fast slow,light dark,happy sad,young old,rich poor,wet dry,open closed
full empty
early late,hard soft,loud quiet,high low,near far,thick thin,wide narrow,strong weak,clean dirty,sweet sour
up down,left right,in out,day night,first last,begin end,buy sell,push pull,win lose,give take,true false
sharp blunt,deep shallow,rough smooth,brave fearful,cheap expensive,simple complex,ancient modern,above below
"""

_PLURALS = """
mouse mice,goose geese,foot feet,tooth teeth,child children,man men,woman women,ox oxen,leaf leaves
knife knives
wolf wolves,shelf shelves,life lives,sheep sheep,fish fish,city cities,baby babies,box boxes,bus buses
dish dishes
hero heroes,potato potatoes,loaf loaves,half halves,berry berries,church churches,fox foxes,story stories
cat cats,dog dogs,book books,tree trees,house houses,river rivers,lamp lamps,garden gardens
"""

_PAST = """
go went,see saw,take took,give gave,come came,eat ate,drink drank,write wrote,run ran,swim swam,sing sang
buy bought,bring brought,think thought,teach taught,catch caught,sleep slept,keep kept,feel felt,find found
fly flew,know knew,grow grew,speak spoke,break broke,sit sat,stand stood,tell told,sell sold,make made
walk walked,play played,jump jumped,paint painted,open opened,count counted
"""

_TRANSLATIONS = """
red,rojo,rouge,rot|blue,azul,bleu,blau|green,verde,vert,grün|white,blanco,blanc,weiß|black,negro,noir,schwarz
one,uno,un,eins|two,dos,deux,zwei|three,tres,trois,drei|four,cuatro,quatre,vier|five,cinco,cinq,fünf
six,seis,six,sechs|seven,siete,sept,sieben|eight,ocho,huit,acht|nine,nueve,neuf,neun|ten,diez,dix,zehn
dog,perro,chien,Hund|cat,gato,chat,Katze|house,casa,maison,Haus|water,agua,eau,Wasser|bread,pan,pain,Brot
milk,leche,lait,Milch|sun,sol,soleil,Sonne|moon,luna,lune,Mond|book,libro,livre,Buch|tree,árbol,arbre,Baum
yes,sí,oui,ja|no,no,non,nein|hello,hola,bonjour,hallo|thank you,gracias,merci,danke|friend,amigo,ami,Freund
"""

_TRADES = """
baker,bread,bakery|barber,haircuts,barber shop|teacher,lessons,school|doctor,treatments,clinic
farmer,crops,farm
judge,verdicts,court|chef,meals,restaurant|librarian,books,library|pilot,flights,airport|sailor,voyages,ship
tailor,clothes,workshop|butcher,meat,butcher shop|carpenter,furniture,workshop|actor,plays,theatre
miner,ore,mine|gardener,flowers,garden|fisher,fish,harbour|potter,pots,pottery|brewer,beer,brewery|nurse,care,hospital
"""

_MONTH_DAYS = """
January 31,March 31,April 30,May 31,June 30,July 31,August 31,September 30,October 31,November 30,December 31
"""

_SHAPES = "triangle three,square four,rectangle four,pentagon five,hexagon six,heptagon seven,octagon eight"

_DEFINITIONS = """
hour,sixty minutes|minute,sixty seconds|day,twenty-four hours|week,seven days|year,twelve months
decade,ten years
century,one hundred years|dozen,twelve items|kilometre,one thousand metres|kilogram,one thousand grams
metre,one hundred centimetres|pair,two items
"""

_ONES = words.listed("""
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen
""")
_TENS = words.listed("_ _ twenty thirty forty fifty sixty seventy eighty ninety")


@dataclass(frozen=True, slots=True)
class Fact:
    """One question family applied to one entity.

    ``value`` alone answers when one word is asked for, ``sentence`` otherwise. ``rivals`` are values of the
    same kind, for yes-or-no questions; ``subject`` names what is asked about.
    """

    family: str
    subject: str
    questions: tuple[str, ...]
    value: str
    sentence: str
    rivals: tuple[str, ...] = ()


def _rows(table: str) -> list[list[str]]:
    return [row.split(",") for row in table.strip().replace("\n", "|").split("|")]


def _pairs(table: str) -> list[tuple[str, str]]:
    entries = (entry for line in table.strip().splitlines() for entry in line.split(","))
    return [(key, value) for key, _, value in (entry.rpartition(" ") for entry in entries)]


def number_word(value: int) -> str:
    """English name of 0..100."""
    if value < 20:
        return _ONES[value]
    if value == 100:
        return "one hundred"
    tens, ones = divmod(value, 10)
    return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")


def article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _family(
    name: str, pairs: list[tuple[str, str]], questions: tuple[str, ...], sentence: str, aspect: str = ""
) -> list[Fact]:
    """Facts of one family; ``{s}`` stands for the subject, ``{v}`` for the value."""
    values = sorted({value for _, value in pairs})
    about = questions + (
        (f"Name the {aspect}.", f"Tell me the {aspect}.", f"I want to know the {aspect}.") if aspect else ()
    )
    return [
        Fact(
            name,
            subject,
            tuple(question.format(s=subject) for question in about),
            value,
            sentence.format(s=subject, v=value),
            tuple(other for other in values if other != value),
        )
        for subject, value in pairs
    ]


def facts() -> list[Fact]:
    """Every fact of the world, in a fixed order."""
    return [*_geography(), *_nature(), *_language(), *_everyday()]


def _geography() -> list[Fact]:
    rows = _rows(_COUNTRIES)
    capitals = [(country, capital) for country, capital, _, _ in rows]
    back = [(capital, country) for country, capital in capitals]
    return [
        *_family(
            "capital", capitals,
            ("What is the capital of {s}?", "Which city is the capital of {s}?", "{s} has which capital?",
             "What is {s}'s capital city?", "Do you know the capital of {s}?", "capital of {s}?"),
            "The capital of {s} is {v}.", "capital of {s}",
        ),
        *_family(
            "country", back,
            ("{s} is the capital of which country?", "Which country has the capital {s}?",
             "Of which country is {s} the capital?", "In which country is {s}?", "Where is {s}?"),
            "{s} is the capital of {v}.", "country whose capital is {s}",
        ),
        *_family(
            "continent", [(row[0], row[2]) for row in rows],
            ("On which continent is {s}?", "Which continent is {s} on?", "What continent does {s} belong to?",
             "Where in the world is {s}?"),
            "{s} is in {v}.", "continent of {s}",
        ),
        *_family(
            "language", [(row[0], row[3]) for row in rows],
            ("Which language is spoken in {s}?", "What language do people speak in {s}?",
             "What is the language of {s}?", "What do they speak in {s}?"),
            "In {s} people speak {v}.", "main language of {s}",
        ),
        *_family(
            "planet", _pairs(_PLANETS),
            ("Which planet from the sun is {s}?", "Where does {s} stand among the planets?",
             "What place does {s} have, counted from the sun?"),
            "{s} is the {v} planet from the sun.", "place of {s} among the planets",
        ),
    ]  # fmt: skip


def _nature() -> list[Fact]:
    rows = _rows(_ANIMALS)
    elements = _rows(_ELEMENTS)
    return [
        *_family(
            "class", [(row[0], article(row[1]) if row[1] != "fish" else "a fish") for row in rows],
            ("What kind of animal is the {s}?", "To which class does the {s} belong?",
            "What is a {s}, as an animal?"),
            "The {s} is {v}.", "class of the {s}",
        ),
        *_family(
            "legs", [(row[0], number_word(int(row[2])) if row[2] != "0" else "no") for row in rows],
            ("How many legs does the {s} have?", "How many legs has a {s}?",
            "What number of legs does a {s} have?"),
            "The {s} has {v} legs.", "number of legs of the {s}",
        ),
        *_family(
            "sound", [(row[0], row[3]) for row in rows if row[3] != "none"],
            ("What sound does the {s} make?", "Which sound does a {s} make?", "How does a {s} sound?",
             "What noise does a {s} make?"),
            "The {s} makes this sound: {v}.", "sound of the {s}",
        ),
        *_family(
            "home", [(row[0], row[4]) for row in rows],
            ("Where does the {s} live?", "What is the home of the {s}?", "Where can I find a {s}?"),
            "The home of the {s} is the {v}.", "home of the {s}",
        ),
        *_family(
            "young", [(row[0], row[5]) for row in rows],
            ("What is a young {s} called?", "What is the name for a baby {s}?",
            "How do you call the young of a {s}?"),
            "A young {s} is called a {v}.", "word for a young {s}",
        ),
        *_family(
            "symbol", [(name, symbol) for name, symbol, _ in elements],
            ("What is the chemical symbol of {s}?", "Which symbol does {s} have?",
            "How is {s} written in chemistry?"),
            "The symbol of {s} is {v}.", "symbol of {s}",
        ),
        *_family(
            "atomic", [(name, number) for name, _, number in elements],
            ("What is the atomic number of {s}?", "Which atomic number does {s} have?"),
            "The atomic number of {s} is {v}.", "atomic number of {s}",
        ),
        *_family(
            "colour", _pairs(_COLOURS_OF),
            ("What colour is {s}?", "Which colour does {s} have?", "What is the colour of {s}?"),
            "The colour of {s} is {v}.", "colour of {s}",
        ),
    ]  # fmt: skip


def _language() -> list[Fact]:
    opposites = _pairs(_OPPOSITES)
    translations = _rows(_TRANSLATIONS)
    found = [
        *_family(
            "opposite", opposites + [(b, a) for a, b in opposites],
            ("What is the opposite of {s}?", "Which word is the opposite of {s}?",
            "Give me the opposite of {s}.",
             "opposite of {s}?"),
            "The opposite of {s} is {v}.", "opposite of {s}",
        ),
        *_family(
            "plural", _pairs(_PLURALS),
            ("What is the plural of {s}?", "One {s}, two what?", "How do you write more than one {s}?"),
            "The plural of {s} is {v}.", "plural of {s}",
        ),
        *_family(
            "past", _pairs(_PAST),
            ("What is the past tense of {s}?", "Put the verb {s} into the past tense.",
            "Today I {s}, yesterday I what?"),
            "The past tense of {s} is {v}.", "past tense of {s}",
        ),
        *_family(
            "word", [(str(n), number_word(n)) for n in range(101)],
            ("Write {s} in words.", "How is {s} written in words?", "Spell out the number {s}."),
            "In words, {s} is {v}.",
        ),

       ]  # fmt: skip
    for column, language in enumerate(("Spanish", "French", "German"), 1):
        found += _family(
            language,
            [(row[0], row[column]) for row in translations],
            (
                f'What is "{{s}}" in {language}?',
                f'Translate "{{s}}" into {language}.',
                f'How do you say "{{s}}" in {language}?',
            ),
            f'In {language}, "{{s}}" is "{{v}}".',
        )
    return found


def _everyday() -> list[Fact]:
    trades = _rows(_TRADES)
    return [
        *_family(
            "trade", [(name, made) for name, made, _ in trades],
            ("What does a {s} provide?", "What do I get from a {s}?", "What does a {s} make or give?"),
            "A {s} provides {v}.",
        ),
        *_family(
            "workplace", [(name, place) for name, _, place in trades],
            ("Where does a {s} work?", "What is the workplace of a {s}?", "In which place does a {s} work?"),
            "A {s} works in this place: {v}.", "workplace of a {s}",
        ),
        *_family(
            "after", [*_next(words.WEEKDAYS), *_next(words.MONTHS)],
            ("What comes after {s}?", "What follows {s}?", "Which one is next after {s}?"),
            "After {s} comes {v}.",
        ),
        *_family(
            "before", [(b, a) for a, b in (*_next(words.WEEKDAYS), *_next(words.MONTHS))],
            ("What comes before {s}?", "Which one is just before {s}?"),
            "Before {s} comes {v}.",
        ),
        *_family(
            "days", _pairs(_MONTH_DAYS),
            ("How many days does {s} have?", "How long is {s}, in days?", "How many days are in {s}?"),
            "{s} has {v} days.", "number of days in {s}",
        ),
        *_family(
            "sides", _pairs(_SHAPES),
            ("How many sides does a {s} have?", "How many corners does a {s} have?"),
            "A {s} has {v} sides.", "number of sides of a {s}",
        ),
        *_family(
            "length", [(a, b) for a, b in _rows(_DEFINITIONS)],
            ("How much is one {s}?", "What does one {s} hold?", "One {s} is how much?"),
            "One {s} is {v}.",
        ),
    ]  # fmt: skip


def _next(cycle: list[str]) -> list[tuple[str, str]]:
    return list(zip(cycle, cycle[1:] + cycle[:1], strict=True))

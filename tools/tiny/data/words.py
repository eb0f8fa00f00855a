"""Word lists of the recipe: the fixed vocabulary of its small world.

Owns data only. The lists are short on purpose: the model has 7 million parameters and the tokenizer 3,584
entries, so that a few hundred well-trained words serve better than thousands of rare ones.
"""

from __future__ import annotations


def listed(text: str) -> list[str]:
    """The words of a block of text."""
    return text.split()


NAMES = listed("""
Ada Alma Amir Anna Arno Asta Ben Bodil Bruno Cara Carl Cleo Dana David Dora Edda Eli Emil Emma Enzo Erik
Eva Farah Felix Finn Flora Frida Gita Greta Hana Hugo Ida Igor Ines Iris Ivan Jana Jonas Josef Juno Kai
Karin Kira Lars Lea Leo Lina Louis Luna Mara Marco Maya Mila Milo Mona Nadia Nils Nina Noah Nora Olaf Olga
Omar Oscar Otto Paula Petra Pia Ravi Rita Rosa Ruben Runa Sami Sara Simon Sofia Stella Sven Tara Theo
Tilda Tomas Uma Vera Victor Viggo Wanda Willa Yara Yusuf Zara Zeno Zoe
""")

PET_NAMES = listed("""
Biscuit Button Cinder Clover Comet Dusty Fern Fudge Ginger Hazel Indie Jasper Kiwi Koko Luna Maple Miso Mochi
Nala Nugget Olive Otis Peanut Pepper Pickle Pip Pixel Poppy Pudding Rex Rusty Shadow Smokey Socks Sunny Taco
Teddy Tiger Toby Waffle Willow Ziggy
""")

CITIES = listed("""
Accra Athens Bergen Berlin Bogota Boston Cairo Chicago Dakar Delhi Dublin Geneva Ghent Hanoi Havana Helsinki
Istanbul Jakarta Kyoto Lagos Leeds Leipzig Lima Lisbon London Lund Lyon Madrid Manila Milan Mumbai Munich
Nairobi Naples Oporto Osaka Oslo Oxford Paris Porto Prague Quito Reykjavik Riga Rome Seoul Seville Sofia
Sydney Tallinn Tokyo Toronto Tunis Turin Utrecht Vienna Vilnius Warsaw York Zagreb Zurich
""")

COLOURS = listed("red blue green yellow orange purple pink brown black white grey silver golden violet")

NOUNS = listed("""
apple arrow attic bag ball barn basket beach bell bench bird blanket boat book bottle bowl box branch bread
bridge broom brush bucket button cabin cake camera candle carpet castle chair church clock cloud coat coffee
coin corner cottage cup curtain desk dish door drawer dress drum engine envelope farm feather fence field fire
flag flower forest fork garden gate glass glove grass guitar hammer harbour hat hill horse house island jacket
jar kettle key kitchen kite knife ladder lake lamp leaf lemon letter library lock machine map market meadow
mirror moon morning mountain needle nest notebook ocean office onion oven paint paper park path pencil piano
picture pillow pipe plate pocket pond potato purse quilt radio rain ribbon ring river road rock roof room rope
rose sail salt sand school scissors sea shadow shed shelf ship shirt shoe shop snow soap sock song spoon stamp
star station stone storm story stove street string sugar summer sun table tea tent ticket tower town toy train
tree truck umbrella valley vase village violin wagon wall watch water well wheel whistle window winter wood
wool yard
""")

ADJECTIVES = listed("""
angry bitter brave bright broken calm careful cheap clean clever cold cosy curious damp dark deep dry
dusty early easy empty faint fast flat fresh gentle glad great happy hard heavy hidden hollow honest
hungry kind large late lazy light little lonely long loud lucky modern muddy narrow neat new noisy odd old
open pale patient plain polite poor proud quick quiet rare ready rich round rusty sad safe sharp shiny
short shy silent simple slow small smooth soft sour steep strange strong sweet tall thick thin tidy tired
tiny warm weak wet wide wild wise wooden young
""")

VERBS_PAST = listed("""
asked baked borrowed bought built called carried caught chased cleaned climbed closed cooked counted
covered cut dropped emptied entered filled fixed followed forgot found gave grabbed helped hid held kept
kicked knocked left lifted liked loved made mended missed moved needed noticed opened packed painted
passed picked placed planted played pulled pushed reached read remembered repaired sold saw searched sent
shook shut sketched sold stole swept threw took touched traded turned untied visited walked wanted washed
watched wrapped wrote
""")

FOODS = listed("""
apples bread butter cake carrots cheese cherries chocolate coffee cookies corn dates eggs figs fish grapes
honey jam lemons lentils melon milk mushrooms noodles nuts oats olives onions oranges pasta peaches pears
peas pepper pizza plums potatoes rice salad salt soup spinach sugar tea toast tomatoes walnuts yogurt
""")

HOBBIES = listed("""
archery baking biking birding boxing camping chess climbing cooking cycling dancing drawing fencing fishing
football gardening golf hiking hockey juggling karate knitting painting poker pottery reading rowing running
sailing sewing singing skating skiing surfing swimming tennis weaving writing yoga
""")

JOBS = listed("""
actor artist baker barber builder butcher carpenter chef clerk coach dentist doctor driver editor engineer
farmer fisher gardener guide judge lawyer librarian mechanic miner nurse painter pilot plumber poet porter
potter sailor singer smith tailor teacher vet waiter weaver writer
""")

WEEKDAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")

MONTHS = listed("""
January February March April May June July August September October November December
""")

# Words of code, letters and notes: what identifiers, titles and random prose are made of.
COMMON = listed("""
about above across after again against almost alone along already also always among another around away
back because become before begin behind below beside best better between beyond both bring build call care
carry cause change check choose class clear close code come common copy count course cover create data day
decide different direct divide down draw during each early earth effect either else end enough even event
ever every example face fact fall family far feel few figure file final find finish first follow force
form forward found four free friend from front full game general give good ground group grow half hand
happen hard have head hear help here high hold hope hour human idea inside into issue item join just keep
kind know language last later lead learn leave left less level life line list listen local long look lose
main make many mark matter mean measure meet member mind minute miss model moment money month more most
mother move much music must name near need never next night note nothing number object offer often once
only open order other outside over own page pair part pass past pattern people perhaps person place plan
play point power present press problem process project prove public pull question quick quite raise range
rate rather reach real reason record remain report rest result return right rule same save second seem
send sense serve set seven several shape share should show side sign simple since single size sleep smile
some soon sound source space speak special stand start state stay step still stop such sure system take
talk task teach tell term test than their them then there these they thing think third this those though
three through time today together tomorrow total toward trade travel trouble true trust turn twelve type
under until upon value very view visit voice wait walk want warm watch weather week weigh what when where
which while whole will wind wish with within without word work world worry would write year yellow
yesterday young
""")

SYLLABLES = listed("""
ba be bi bo bu da de di do du fa fe fi fo ga ge gi go ha he hi ho ja jo ka ke ki ko ku la le li lo lu ma
me mi mo mu na ne ni no nu pa pe pi po pu ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo wa we
wi wo xa xi ya yo za ze zi zo zu lan mer tor nel vin dar kos rum bel tin gra sto fle qua
""")

# Letters outside ASCII, so that every kind of multi-byte text is seen.
FOREIGN = listed("""
café naïve jalapeño Zürich smörgås crème façade über Ærø Łódź čeština žena déjà vu señor coração Straße
føroyar привет мир книга вода γειά κόσμε λόγος 你好 世界 水 山 日本語 東京 ありがとう 한국어 안녕 مرحبا שלום ✓
→ ≤ € £ ° ½ 🙂 🚀 🌲 🐟
""")

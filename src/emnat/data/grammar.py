"""The embedded corpus: German sentences with English translations, drawn from a synchronous grammar of our own.

Every German sentence has many right translations, as in life: synonyms, adverbs and clauses that can stand in several
places, contracted negations, two futures, two genitives, the dative alternation, particles before or after the object,
optional words. One of them is drawn at random for each sentence, so the corpus is multi-modal in the way that one-pass
models suffer from. German word order and case are as they should be; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from emnat.world import derive_seed

Pair = tuple[str, str]


@dataclass(frozen=True)
class Noun:
    gender: str  # m, f or n
    german: str
    english: tuple[str, ...]


@dataclass(frozen=True)
class Verb:
    """`english`: (base form, past) of each synonym; a particle verb has its particle as a third part."""

    participle: str
    infinitive: str
    english: tuple[tuple[str, ...], ...]


def _nouns(table: str) -> list[Noun]:
    rows = (line.split(" = ") for line in table.strip().splitlines())
    return [Noun(german.split()[0], german.split()[1], tuple(english.split(" / "))) for german, english in rows]


def _verbs(table: str) -> list[Verb]:
    rows = (line.split(" = ") for line in table.strip().splitlines())
    return [
        Verb(german.split()[0], german.split()[1], tuple(tuple(form.split()) for form in english.split(" / ")))
        for german, english in rows
    ]


def _phrases(table: str) -> list[tuple[str, tuple[str, ...]]]:
    rows = (line.split(" = ") for line in table.strip().splitlines())
    return [(german, tuple(english.split(" / "))) for german, english in rows]


_PEOPLE = _nouns("""
m Nachbar = neighbour
m Arzt = doctor / physician
m Junge = boy / lad
m Bäcker = baker
m Polizist = policeman
m Bruder = brother
f Frau = woman
f Schwester = sister
f Ärztin = doctor
f Sängerin = singer
n Mädchen = girl
n Kind = child / kid
""")

_THINGS = _nouns("""
m Brief = letter
m Schlüssel = key
m Hut = hat
m Koffer = suitcase
f Zeitung = newspaper
f Tasche = bag
f Uhr = watch
n Buch = book
n Bild = picture
n Fahrrad = bicycle / bike
n Auto = car / automobile
n Geschenk = present / gift
""")

_ADJECTIVES = _phrases("""
alt = old
neu = new
klein = small / little
groß = big / large
schön = beautiful
rot = red
blau = blue
schwer = heavy
""")

_PERSON_ADJECTIVES = _phrases("""
alt = old
müde = tired
freundlich = friendly
klug = clever
krank = sick
""")

_TAKES_THING = _verbs("""
gekauft kaufen = buy bought / purchase purchased
gefunden finden = find found / discover discovered
repariert reparieren = repair repaired / fix fixed
zerbrochen zerbrechen = break broke / smash smashed
gemalt malen = paint painted / draw drew
versteckt verstecken = hide hid / conceal concealed
geputzt putzen = clean cleaned / polish polished
aufgehoben aufheben = pick picked up
weggeworfen wegwerfen = throw threw away
mitgenommen mitnehmen = take took along
""")

_GIVES = _verbs("""
gegeben geben = give gave / hand handed
gezeigt zeigen = show showed
geschickt schicken = send sent / mail mailed
gebracht bringen = bring brought
geschenkt schenken = give gave / offer offered
""")

_ALONE = _verbs("""
gelacht lachen = laugh laughed / giggle giggled
gearbeitet arbeiten = work worked
geschlafen schlafen = sleep slept
gesungen singen = sing sang
gewartet warten = wait waited
getanzt tanzen = dance danced
geweint weinen = cry cried / weep wept
""")

_PAST_TIMES = _phrases("""
gestern = yesterday
heute Morgen = this morning
letzte Woche = last week
am Montag = on Monday
gestern Abend = last night / yesterday evening
""")

_FUTURE_TIMES = _phrases("""
morgen = tomorrow
heute Abend = tonight / this evening
nächste Woche = next week
am Freitag = on Friday
bald = soon / before long
""")

_PLACES = _phrases("""
im Garten = in the garden
in der Küche = in the kitchen
am See = at the lake / by the lake
auf dem Markt = at the market
vor dem Haus = in front of the house
im Wald = in the forest
am Bahnhof = at the station
""")

_MANNERS = _phrases("""
schnell = quickly / rapidly
leise = quietly / silently
vorsichtig = carefully / cautiously
fröhlich = happily / cheerfully
""")

_OPINIONS = _phrases("""
Ich glaube = I think / I believe
Wir hoffen = we hope
Alle sagen = everyone says
Ich habe gehört = I heard
""")

_CONJUNCTIONS = _phrases("""
weil = because / since
obwohl = although / even though / though
bevor = before
nachdem = after
""")

_DETERMINERS = {  # German forms by case and gender; English forms
    "der": ({"nom": "der die das", "acc": "den die das", "dat": "dem der dem"}, "the"),
    "ein": ({"nom": "ein eine ein", "acc": "einen eine ein", "dat": "einem einer einem"}, "a"),
    "mein": ({"nom": "mein meine mein", "acc": "meinen meine mein", "dat": "meinem meiner meinem"}, "my"),
    "unser": ({"nom": "unser unsere unser", "acc": "unseren unsere unser", "dat": "unserem unserer unserem"}, "our"),
}
_GENITIVES = {"mein": ("meines meiner meines", "my"), "der": ("des der des", "the")}
_ENDINGS = {  # of adjectives, by gender m f n: after "der", and after the others
    "nom": ("e e e", "er e es"),
    "acc": ("en e e", "en e es"),
    "dat": ("en en en", "en en en"),
}


class _Sentence:
    """Draws one sentence pair. German and English are built side by side from the same choices."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def draw(self) -> Pair:
        kind = self._random.random()
        if kind < 0.82:
            german, english = self._main_clause()
        elif kind < 0.9:
            german, english = self._two_clauses()
        else:
            german, english = self._opinion()
        german, english = german + ".", english + "."
        return german[0].upper() + german[1:], english[0].upper() + english[1:]

    def _one(self, options: Sequence[str]) -> str:
        return self._random.choice(list(options))

    def _maybe(self, probability: float) -> bool:
        return self._random.random() < probability

    def _main_clause(self) -> Pair:
        """Subject, auxiliary in second place, the rest, the verb last."""
        future = self._maybe(0.3)
        (subject, english_subject), (auxiliary, middle, verb), predicate = self._clause_parts(future=future)
        time, english_times = self._random.choice(_FUTURE_TIMES if future else _PAST_TIMES)
        has_time = self._maybe(0.55)
        german = [subject, auxiliary, time if has_time else "", middle, verb]
        if has_time and self._maybe(0.5):
            german = [time, auxiliary, subject, middle, verb]
        english_time = self._one(english_times) if has_time else ""
        return _join(german), self._with_time([english_subject, predicate], english_time)

    def _with_time(self, clause: list[str], time: str) -> str:
        """A time may open an English sentence or close it."""
        if not time:
            return _join(clause)
        return _join([time, *clause] if self._maybe(0.5) else [*clause, time])

    def _two_clauses(self) -> Pair:
        (subject, english_subject), (auxiliary, middle, verb), predicate = self._clause_parts(short=True)
        conjunction, english_conjunctions = self._random.choice(_CONJUNCTIONS)
        (side_subject, english_side), (side_auxiliary, side_middle, side_verb), side_predicate = self._clause_parts(
            short=True
        )
        side = _join([conjunction, side_subject, side_middle, side_verb, side_auxiliary])
        if self._maybe(0.5):
            german = f"{side}, {_join([auxiliary, subject, middle, verb])}"
        else:
            german = f"{_join([subject, auxiliary, middle, verb])}, {side}"
        main = _join([english_subject, predicate])
        side = _join([self._one(english_conjunctions), english_side, side_predicate])
        return german, f"{side}, {main}" if self._maybe(0.5) else f"{main} {side}"

    def _opinion(self) -> Pair:
        opinion, english_opinions = self._random.choice(_OPINIONS)
        (subject, english_subject), (auxiliary, middle, verb), predicate = self._clause_parts(future=self._maybe(0.3))
        german = f"{opinion}, dass {_join([subject, middle, verb, auxiliary])}"
        that = self._one(["that", ""])
        return german, _join([self._one(english_opinions), that, english_subject, predicate])

    def _clause_parts(self, short: bool = False, future: bool = False) -> tuple[Pair, tuple[str, str, str], str]:
        """((subject, its English), (auxiliary, middle, verb), English predicate)."""
        subject = self._noun_phrase(self._random.choice(_PEOPLE), "nom", _PERSON_ADJECTIVES)
        negative = self._maybe(0.15)
        objects, english_objects, verb, english = self._verb_and_objects(short)
        german_middle, after = [objects], []
        manner = ""
        if not negative and self._maybe(0.15):
            german_manner, english_manners = self._random.choice(_MANNERS)
            german_middle.append(german_manner)
            manner = self._one(english_manners)
        if not short and self._maybe(0.15):
            german_place, english_places = self._random.choice(_PLACES)
            german_middle.append(german_place)
            after.append(self._one(english_places))
        if negative:
            german_middle.append("nicht")
        if manner and self._maybe(0.5):
            after.insert(0, manner)  # after the object; otherwise before the verb
            manner = ""
        finite = self._finite(english, future, negative, manner)
        auxiliary, german_verb = ("wird", verb.infinitive) if future else ("hat", verb.participle)
        predicate = _join([finite, english_objects, *after])
        return subject, (auxiliary, _join(german_middle), german_verb), predicate

    def _finite(self, english: tuple[str, ...], future: bool, negative: bool, manner: str) -> str:
        base, past = english[0], english[1]
        if future:
            will = self._one(["won't", "will not", "is not going to"] if negative else ["will", "is going to"])
            return _join([will, manner, base])
        if negative:
            return _join([self._one(["didn't", "did not"]), base])
        return _join([manner, past])

    def _verb_and_objects(self, short: bool) -> tuple[str, str, Verb, tuple[str, ...]]:
        """German objects, English objects (with a particle where it belongs), the verb, its chosen English."""
        kind = self._random.random()
        if kind < (0.4 if short else 0.25):
            verb = self._random.choice(_ALONE)
            return "", "", verb, self._random.choice(verb.english)
        thing = self._random.choice(_THINGS)
        german_thing, english_thing = self._object(thing)
        if kind < 0.78:
            verb = self._random.choice(_TAKES_THING)
            english = self._random.choice(verb.english)
            if len(english) == 3:
                pair = [english[2], english_thing] if self._maybe(0.5) else [english_thing, english[2]]
                return german_thing, _join(pair), verb, english
            return german_thing, english_thing, verb, english
        verb = self._random.choice(_GIVES)
        german_person, english_person = self._noun_phrase(self._random.choice(_PEOPLE), "dat", _PERSON_ADJECTIVES)
        both = [english_person, english_thing] if self._maybe(0.5) else [english_thing, "to", english_person]
        return _join([german_person, german_thing]), _join(both), verb, self._random.choice(verb.english)

    def _object(self, thing: Noun) -> Pair:
        """A thing in the accusative, at times with its owner: two English genitives."""
        if not self._maybe(0.12):
            return self._noun_phrase(thing, "acc", _ADJECTIVES)
        owner = self._random.choice([noun for noun in _PEOPLE if noun.gender == "f"])  # no genitive ending to add
        determiner = self._one(list(_GENITIVES))
        forms, english_determiner = _GENITIVES[determiner]
        german = _join([_form(_DETERMINERS["der"][0]["acc"], thing), thing.german, _form(forms, owner), owner.german])
        english_owner, english_thing = f"{english_determiner} {self._one(owner.english)}", self._one(thing.english)
        return german, self._one([f"{english_owner}'s {english_thing}", f"the {english_thing} of {english_owner}"])

    def _noun_phrase(self, noun: Noun, case: str, adjectives: Sequence[tuple[str, tuple[str, ...]]]) -> Pair:
        determiner = self._random.choices(list(_DETERMINERS), weights=[4, 3, 2, 1])[0]
        forms, english_determiner = _DETERMINERS[determiner]
        german, english = [_form(forms[case], noun)], []
        if self._maybe(0.2):
            adjective, english_adjectives = self._random.choice(adjectives)
            ending = _form(_ENDINGS[case][0 if determiner == "der" else 1], noun)
            if self._maybe(0.35):
                german.append("sehr")
                english.append(self._one(["very", "really"]))
            german.append(_inflect(adjective, ending))
            english.append(self._one(english_adjectives))
        german.append(noun.german if case == "nom" else _oblique(noun.german))
        english.append(self._one(noun.english))
        if english_determiner == "a" and english[0][0] in "aeiou":
            english_determiner = "an"
        return _join(german), _join([english_determiner, *english])


def draw_pairs(count: int, seed: int) -> list[Pair]:
    """`count` pairs with different sources."""
    sentence = _Sentence(Random(derive_seed("grammar", seed)))
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        source, target = sentence.draw()
        pairs.setdefault(source, target)
    return list(pairs.items())


def corpus_files(folder: Path) -> dict[str, list[str]]:
    """The files of each set, as a config names them."""
    return {name: [str(folder / f"{name}.de"), str(folder / f"{name}.en")] for name in ("train", "valid", "test")}


def write_corpus(folder: Path, train: int, valid: int, test: int, seed: int) -> None:
    """`train.de`, `train.en` and so on; no source is in two sets."""
    pairs = draw_pairs(train + valid + test, seed)
    sets = {"train": pairs[:train], "valid": pairs[train : train + valid], "test": pairs[train + valid :]}
    folder.mkdir(parents=True, exist_ok=True)
    for name, paths in corpus_files(folder).items():
        for path, side in zip(paths, zip(*sets[name], strict=True), strict=True):
            Path(path).write_text("\n".join(side) + "\n", encoding="utf-8")


def _form(forms: str, noun: Noun) -> str:
    return forms.split()["mfn".index(noun.gender)]


def _inflect(adjective: str, ending: str) -> str:
    stem = "müd" if adjective == "müde" else adjective
    return stem + ending


def _oblique(noun: str) -> str:
    """The weak masculines of the lexicon take -n or -en outside the nominative."""
    return {"Nachbar": "Nachbarn", "Junge": "Jungen", "Polizist": "Polizisten"}.get(noun, noun)


def _join(parts: Sequence[str]) -> str:
    return " ".join(part for part in parts if part)

"""Texts that tokenizers find hard: many scripts, emoji, code, runs of blanks, digits, control characters."""

from __future__ import annotations

import random

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "It's what we've always said: I'll, you're, they'd, DON'T, O'Brien's and 'tis.",
    "A language model serves programs that share their prefixes; the prefixes are computed once.",
    "In 1984, 3.14159 and 1,000,000 were numbers; so are 0x1F, 2^10, 1e-30, Ⅷ, ², ½ and ٣.",
    "def step(self, batch: list[int]) -> None:\n    for i, row in enumerate(batch):\n\treturn row ** 2  # nothing\r\n",
    '{"name": "get_weather", "arguments": {"city": "Zürich", "units": ["°C", null, true]}}',
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "敏捷的棕色狐狸跳过了懒狗。今天天气很好,我们去公园吧!",
    "いろはにほへと ちりぬるを。東京タワーは高い。カタカナ",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "صِف خَلقَ خَودِ كَمِثلِ الشَمسِ إِذ بَزَغَت",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "ကမ္ဘာပေါ်ရှိ လူအားလုံး",
    "Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis. Größe, naïve, Ångström",
    "emoji: 😀 👩‍👩‍👧‍👦 🇩🇪🇫🇷 👍🏽 ❤️ ☃ ✈️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "composed é ü Å, decomposed é ü Å, ligature ﬁ, kelvin K, \u200bzero\u200dwidth\u2060, \u00a0nbsp\u3000wide",
    "mathematical 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ∑ᵢ xᵢ² ≤ ∞, box ▁▂▃ lower one eighth block",
    "control \x00\x01\x07\x1b[0m\x7f\x85 and \ufeffmark \ufffd and noncharacters \ufdd0 \ufdd1 \uffff",
    " leading and trailing ",
    "   three  and   more    blanks\t\ttabs\n\nlines\r\n\r\n \n  \n",
    "",
    " ",
    "\n",
    "a" * 60,
    " " * 40,
    "<0x41> <0xE2> ##suffix Ġ Ċ ▁",
)

_ALPHABET = "abcdeXYZ 0123456789 \n\t'.,;:!?-_/\\()[]{}<>|\"éßñжяאبहा漢字かな한글😀🇩\u0301\u200d\u00a0▁\x00"


def random_texts(seed: int, count: int, longest: int = 40) -> list[str]:
    """`count` texts of random characters out of many scripts. Prints the seed."""
    print(f"texts from seed {seed}")
    rng = random.Random(seed)
    return ["".join(rng.choices(_ALPHABET, k=rng.randrange(longest))) for _ in range(count)]


def texts(seed: int, count: int = 300) -> list[str]:
    """The sentences, their halves, and random texts."""
    rng = random.Random(seed)
    halves = [sentence[rng.randrange(len(sentence)) :] for sentence in SENTENCES if sentence]
    return [*SENTENCES, *halves, *random_texts(seed, count)]

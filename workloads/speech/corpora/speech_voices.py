"""The synthetic speakers: which voices of espeak-ng play in which role.

A speaker is an accent with a variant (the timbre). The accents are shared; the variants of the
three roles differ, so validation and test are spoken by timbres that training never had. Variants
whose long-term spectra differ little (`aunty` and `f4`, `max` and `Alex`) play the same role. Left
out are those with noise seeded by the clock (`espeak.CLOCK_SEEDED`), the robots, and a few others.
"""

ACCENTS = (
    "en-us",
    "en-us-nyc",
    "en-029",
    "en-gb-scotland",
    "en-gb-x-rp",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
)

# fmt: off
VARIANTS: dict[str, tuple[str, ...]] = {
    "train": (
        "Alex", "Andrea", "Andy", "Diogo", "Gene", "Henrique", "Mario", "Nguyen", "Tweaky", "adam",
        "anika", "announcer", "antonio", "aunty", "benjamin", "ed", "edward2", "f4", "fast",
        "grandpa", "gustave", "iven4", "john", "klatt3", "klatt4", "m1", "m4", "m5", "m6",
        "marcelo", "max", "michel", "miguel", "norbert", "paul", "pedro", "rob", "robert", "shelby",
        "steph", "steph2",
    ),
    "validation": (
        "Annie", "Denis", "Lee", "Mike", "belinda", "david", "kaukovalta", "m3", "m8", "travis",
    ),
    "test": (
        "Hugo", "Michael", "boris", "edward", "f1", "grandma", "linda", "m2", "m7", "quincy",
    ),
}
# fmt: on


def voices(role: str) -> list[str]:
    """The voices of a role (train, validation, test), every variant with every accent."""
    return [f"{accent}+{variant}" for variant in VARIANTS[role] for accent in ACCENTS]


def speaker_ids() -> dict[str, int]:
    """A number for every voice of every role, from 1 on, as LibriSpeech numbers its readers."""
    everyone = [voice for role in VARIANTS for voice in voices(role)]
    return {voice: number for number, voice in enumerate(everyone, 1)}

"""Names and things that workbooks are filled with."""

FIRST_NAMES = (
    "Ada", "Bela", "Carla", "Dario", "Edda", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kira",
    "Luca", "Mara", "Nils", "Olga", "Pavel", "Rosa", "Sven", "Tilda", "Uwe", "Vera", "Wanda",
    "Yara", "Zeno",
)  # fmt: skip
LAST_NAMES = (
    "Abel", "Brandt", "Conti", "Duarte", "Eriksen", "Fischer", "Garcia", "Hansen", "Ivanova",
    "Jensen", "Keller", "Lindgren", "Moreau", "Novak", "Okafor", "Petrov", "Quist", "Rossi", "Sato",
    "Tanaka", "Urban", "Vogel", "Weber", "Zimmer",
)  # fmt: skip
ITEMS = (
    "Bolt M6", "Bracket", "Cable 2 m", "Desk lamp", "Drill bit", "Ear muffs", "Fuse 10 A", "Gloves",
    "Hinge", "Hose clamp", "Label roll", "Ladder", "Marker", "Nail box", "Paint tin", "Pallet wrap",
    "Rope 20 m", "Sealant", "Screw set", "Tape", "Torch", "Valve", "Washer", "Wrench",
)  # fmt: skip
REGIONS = ("East", "West", "North", "South", "Centre", "Islands", "Coast", "Alps")
PRODUCTS = ("Alpha", "Bravo", "Cargo", "Delta", "Ember", "Flint")
TEAMS = ("Amber", "Blue", "Coral", "Dune", "Elm", "Fern")
DEPARTMENTS = ("Sales", "Legal", "Finance", "Research", "Support", "Design")

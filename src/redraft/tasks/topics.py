"""What the instruction prompts made here ask for: topics, texts about them, and words. None of it is IFEval's."""

TOPICS = (
    "a bakery that opens before dawn", "a beekeeper and her hives", "a bicycle with a flat tire", "a bookshop cat",
    "a boy who repairs old radios", "a bridge between two villages", "a broken umbrella", "a camping weekend",
    "a chess game in the park", "a clockmaker's workshop", "a cup of hot chocolate", "a day without electricity",
    "a dog that is afraid of thunder", "a drawer full of buttons", "a farmer's first tractor", "a ferry in the fog",
    "a fox in the garden", "a grandmother's recipe book", "a greenhouse in winter", "a hot air balloon",
    "a kite on a windy beach", "a lantern festival", "a library on a boat", "a lighthouse keeper", "a long train ride",
    "a lost suitcase", "a market on a rainy morning", "a message in a bottle", "a mountain hut", "a moving day",
    "a neighbour who plays the trumpet", "a night at the observatory", "a pair of red shoes", "a parrot that sings",
    "a picnic near the lake", "a piano that nobody plays", "a power cut during dinner", "a sailor's diary",
    "a school trip to the aquarium", "a snowman in April", "a squirrel and a walnut", "a sunflower field",
    "a swimming lesson", "a tailor's needle", "a tree house", "a village choir", "a visit to the dentist",
    "a walk along the canal", "a watermelon contest", "a windmill", "an apple orchard", "an empty theatre",
    "an old map", "an orchestra rehearsal", "autumn leaves", "baking bread", "birds that fly south", "brushing teeth",
    "building a raft", "carrots and rabbits", "clouds", "comets", "crossing a desert", "earthworms", "firefighters",
    "frogs in a pond", "glass blowing", "growing tomatoes", "hedgehogs", "honey", "how a zipper works", "icebergs",
    "learning to whistle", "lemonade", "magnets", "making pottery", "maple syrup", "milk and cheese", "morning dew",
    "night trains", "owls", "paper boats", "penguins", "pumpkins", "rainbows", "riding a tram", "rivers", "roof tiles",
    "sand castles", "seahorses", "shadows", "soap bubbles", "spider webs", "stamps", "the last bus home",
    "the school garden", "the smell of rain", "tide pools", "traffic lights", "tunnels", "volcanoes", "wool",
)  # fmt: skip

FORMS = (
    "Write a short story about {}.", "Write a short poem about {}.", "Write a short letter about {}.",
    "Write a short advertisement about {}.", "Describe {} to a young child.", "Write a diary entry about {}.",
    "Write a few lines about {} for a newsletter.", "Write a short speech about {}.",
    "Write a brief description of {}.", "Tell me something about {}.",
)  # fmt: skip

QUESTIONS = (
    "Would {} be a good subject for a painting?", "Would {} make a good story?", "Should a child learn about {}?",
    "Is it easy to write a song about {}?", "Would you like to read a book about {}?",
)  # fmt: skip
"""Requests that can be answered with yes, no or maybe."""

WORDS = (
    "bridge", "candle", "winter", "garden", "silver", "window", "basket", "river", "friend", "music", "forest",
    "morning", "letter", "bread", "shadow", "yellow", "quiet", "journey", "stone", "smile",
)  # fmt: skip
"""Words that a response shall hold."""

COMMON = ("and", "of", "it", "is", "in", "with", "for", "this", "that", "are", "was", "they")
"""Words that a response shall avoid."""

ENDINGS = (
    "That is all for today.", "Thank you for reading.", "And so it goes.", "What do you think?", "See you soon.",
    "Have a wonderful day!", "I hope this helps.", "Tomorrow is another day.",
)  # fmt: skip
"""Last words that a response shall have, without commas."""

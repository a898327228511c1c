"""Responses to IFEval's prompts, made by rules: some follow their instructions, some do not, some are odd."""

import json

SENTENCES = (
    "The committee met on Monday to discuss the harbour.",
    "Dr. Weber arrived at 9 a.m. with Mr. Okafor and two folders.",
    "“We will decide today.” Nobody objected!",
    "Costs rose by 3.5 percent, e.g. for timber and glass.",
    'She asked, "Is it ready?" and left.',
    "NASA and the EU sent OBSERVERS from the U.S. as well.",
    "It rained... then the sun came out (as it does).",
    "Version 2.0 was better; everyone agreed.",
)
LANGUAGES = {
    "de": "Der Ausschuss traf sich am Montag und sprach über den Hafen. Niemand widersprach.",
    "fr": "Le comité s'est réuni lundi pour parler du port. Personne ne s'y est opposé.",
    "es": "El comité se reunió el lunes para hablar del puerto. Nadie se opuso.",
    "hi": "समिति सोमवार को बंदरगाह पर चर्चा करने के लिए मिली। किसी ने आपत्ति नहीं की।",
    "ru": "Комитет собрался в понедельник, чтобы обсудить порт. Никто не возражал.",
    "ko": "위원회는 월요일에 항구에 대해 논의하기 위해 모였습니다. 아무도 반대하지 않았습니다.",
    "ar": "اجتمعت اللجنة يوم الاثنين لمناقشة الميناء. لم يعترض أحد.",
    "th": "คณะกรรมการประชุมกันในวันจันทร์เพื่อหารือเรื่องท่าเรือ ไม่มีใครคัดค้าน",
}
ODD = (
    "",
    "<think>Commas, many, and\nlines.</think>\nyes",
    " \n ",
    "*",
    "[]",
    '{"a": 1,}',
    "..." * 40,
    "\n\n" * 30 + "end",
    "🙂" * 20,
    "a\u0301" * 30,
    '"',
    "***\n***",
)


def answer_of(row):
    return json.dumps({key: row[key] for key in ("key", "instruction_id_list", "kwargs")})


def prose(index, count=12):
    return " ".join(SENTENCES[(index + i * (index % 3 + 1)) % len(SENTENCES)] for i in range(count))


def following(row, index):
    """A response that follows many of a prompt's instructions, whichever are easily followed together."""
    text = prose(index, 4 + index % 40)
    for name, kwargs in sorted(zip(row["instruction_id_list"], row["kwargs"], strict=True), key=order):
        if rule := RULES.get(name):
            text = rule(text, {key: value for key, value in kwargs.items() if value})
    return text


def disregarding(row, index):
    """A response that follows instructions only by chance: markdown, another language, or something odd."""
    kind = index % 5
    if kind == 0:
        return ODD[index // 5 % len(ODD)]
    if kind == 1:
        return " ".join(list(LANGUAGES.values())[index // 5 % len(LANGUAGES)] for _ in range(1 + index % 30))
    if kind == 2:
        return "**Answer:**\n* " + "\n* ".join(SENTENCES[: 1 + index % 6]) + "\n*Thanks.*"
    if kind == 3:
        return f"{row['prompt']}\n\n{row['prompt']}\n\n{prose(index)}"
    return "Sure! Here it is:\n" + following(row, index) + "\nLet me know."


def borderline(row, index):
    """A response at the limit of how many sentences or words there must be, where how they are counted decides."""
    for name, kwargs in zip(row["instruction_id_list"], row["kwargs"], strict=True):
        if name == "length_constraints:number_sentences":
            return " ".join(["“Nobody objected.” The committee left."] * (kwargs["num_sentences"] // 2 + index % 2))
        if name == "length_constraints:number_words":
            return " ".join((LANGUAGES["hi"].split() * kwargs["num_words"])[: kwargs["num_words"] - index % 2])
    return None


def order(pair):
    """What encloses or ends the whole response comes last."""
    return ("prompt" in pair[0], "quotation" in pair[0], "json" in pair[0], "end_checker" in pair[0], pair[0])


RULES = {
    "punctuation:no_comma": lambda text, _: text.replace(",", ""),
    "change_case:english_lowercase": lambda text, _: text.lower(),
    "change_case:english_capital": lambda text, _: text.upper(),
    "change_case:capital_word_frequency": lambda text, k: text + " NOW!" * (k["capital_frequency"] - 4),
    "detectable_format:title": lambda text, _: f"<<Minutes>>\n{text}",
    "detectable_format:json_format": lambda text, _: f"```json\n{json.dumps({'text': text})}\n```",
    "detectable_format:number_highlighted_sections": lambda text, k: text + " *part*" * k["num_highlights"],
    "detectable_format:number_bullet_lists": lambda text, k: text + "\n* point" * k["num_bullets"],
    "detectable_format:multiple_sections": lambda text, k: "\n".join(
        f"{k['section_spliter']} {i + 1}\n{text}" for i in range(k["num_sections"])
    ),
    "detectable_format:constrained_response": lambda text, _: f"My answer is maybe. {text}",
    "detectable_content:number_placeholders": lambda text, k: text + " [name]" * k["num_placeholders"],
    "detectable_content:postscript": lambda text, k: f"{text}\n{k['postscript_marker']} One more thing.",
    "combination:two_responses": lambda text, _: f"{text}\n******\nNo. {text}",
    "combination:repeat_prompt": lambda text, k: f"{k['prompt_to_repeat']}\n{text}",
    "keywords:existence": lambda text, k: f"{text} {' '.join(k['keywords'])}",
    "keywords:frequency": lambda text, k: text + f" {k['keyword']}" * k["frequency"],
    "keywords:letter_frequency": lambda text, k: text + f" {k['letter']}" * (k["let_frequency"] // 2),
    "language:response_language": lambda text, k: LANGUAGES.get(k["language"], text),
    "length_constraints:number_words": lambda text, k: text + " word" * (k["num_words"] - len(text.split()) - 3),
    "length_constraints:number_paragraphs": lambda text, k: "\n***\n".join([text] * k["num_paragraphs"]),
    "length_constraints:nth_paragraph_first_word": lambda text, k: "\n\n".join(
        [f"{k['first_word']} {text}"] * k["num_paragraphs"]
    ),
    "length_constraints:number_sentences": lambda text, k: prose(
        len(text), k["num_sentences"] - (k["relation"] == "less than")
    ),
    "startend:end_checker": lambda text, k: f"{text} {k['end_phrase']}",
    "startend:quotation": lambda text, _: f'"{text}"',
}


def samples(rows):
    """Two samples a prompt and, where something is counted that can be counted in two ways, a third.

    As lines of generations.parquet.
    """
    return [
        {
            "step": 0,
            "benchmark": "ifeval",
            "problem": i,
            "sample": s,
            "prompt": row["prompt"],
            "answer": answer_of(row),
            "text": text,
        }
        for i, row in enumerate(rows)
        for s, make in enumerate((following, disregarding, borderline))
        if (text := make(row, i)) is not None
    ]

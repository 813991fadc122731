"""Conversations as token ids, through the chat template of a Hugging Face folder.

The text is what `transformers` renders (`apply_chat_template`), and so are the ids. Beside it stands
what a model is to learn: the text that each assistant turn adds to the conversation before it. That
is found by rendering the conversation up to before the turn, with the generation prompt, and up to
after it: the first has to be a beginning of the second, and that a beginning of the whole. Templates
that rewrite earlier turns (some leave out their reasoning) do not have that property for those turns,
which is an error here and not a guess; `"weight": 0` in a message says that its turn is not learned.

Needs the packages `jinja2` and `tokenizers`.
"""

from __future__ import annotations

import datetime
import json
import pathlib
from typing import TYPE_CHECKING, Any

from halfstep.folder import BadRequest, read_json, token_text

if TYPE_CHECKING:
    import jinja2
    import tokenizers

#: Older ones have known ways out of the sandbox, and templates come from strangers.
OLDEST_JINJA2 = (3, 1, 6)


class ChatTemplate:
    """The chat template of a folder, with its tokenizer.

    Raises BadRequest if the folder has none or it cannot be used, ImportError without `jinja2`.
    """

    def __init__(self, folder: pathlib.Path, tokenizer: "tokenizers.Tokenizer") -> None:
        import jinja2
        import tokenizers

        self._templates = {name: _compile(text, name) for name, text in find_templates(folder).items()}
        self._special_tokens = _special_tokens(folder)
        # Post-processors add nothing here (the template does), but some trim the places of tokens.
        content = json.loads(tokenizer.to_str()) | {"post_processor": None}
        self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
        self._template_error = jinja2.TemplateError

    def render(
        self, messages: list[dict[str, Any]], tools: list[Any] | None = None, generation_prompt: bool = False
    ) -> str:
        """The text of a conversation; with the generation prompt, an assistant turn can follow it."""
        template = self._templates.get("tool_use") if tools is not None else None
        template = template or self._templates.get("default")
        if template is None:
            raise BadRequest(f"several chat templates, but none is named default: {', '.join(self._templates)}")
        try:
            return template.render(
                messages=[_without_nulls(message) for message in messages],
                tools=tools,
                documents=None,
                add_generation_prompt=generation_prompt,
                **self._special_tokens,
            )
        except self._template_error as error:
            raise BadRequest(f"the chat template: {error}") from error
        except Exception as error:  # of Python inside the template: a missing key, a wrong type
            raise BadRequest(f"the chat template: {type(error).__name__}: {error}") from error

    def learned_spans(
        self, messages: list[dict[str, Any]], tools: list[Any] | None, text: str
    ) -> list[tuple[int, int]]:
        """The parts of `text`, the whole conversation, that assistant turns add."""
        spans = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant" or message.get("weight", 1) == 0:
                continue
            before = self.render(messages[:number], tools, generation_prompt=True)
            after = self.render(messages[: number + 1], tools)
            if not after.startswith(before):
                raise BadRequest(
                    f"message {number}: the chat template's generation prompt is no beginning of what it makes "
                    f"of the turn itself ({_difference(before, after)}), so a model that learned it would be "
                    'asked differently; use a template without that difference, or give the message "weight": 0'
                )
            if not text.startswith(after):
                raise BadRequest(
                    f"message {number}: the chat template rewrites this turn once others follow "
                    f"({_difference(after, text)}), so it cannot be learned here; give the message "
                    '"weight": 0 and make an example that ends with this turn'
                )
            spans.append((len(before), len(after)))
        return spans

    def encode(self, conversation: dict[str, Any]) -> tuple[list[int], bytes]:
        """The ids of {"messages": [...], "tools": [...]}, and for each a 1 if it is to be learned.

        A token that begins in front of a turn and ends inside it belongs to the turn.
        """
        messages, tools = conversation["messages"], conversation.get("tools")
        text = self.render(messages, tools)
        is_learned = bytearray(len(text))
        for begin, end in self.learned_spans(messages, tools, text):
            is_learned[begin:end] = b"\1" * (end - begin)
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        mask = bytes(any(is_learned[begin : max(end, begin + 1)]) for begin, end in encoding.offsets)
        return encoding.ids, mask

    def prompt(self, message: str) -> tuple[list[int], int]:
        """The ids after which the assistant answers a message of the user, and the token that ends it.

        The latter is the special token that the template puts behind an answer, -1 if there is none.
        """
        messages = [{"role": "user", "content": message}]
        text = self.render(messages, generation_prompt=True)
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        answer = "x"
        whole = self.render([*messages, {"role": "assistant", "content": answer}])
        if not whole.startswith(text + answer):
            return ids, -1
        behind = self._tokenizer.encode(whole[len(text + answer) :], add_special_tokens=False).ids
        added = self._tokenizer.get_added_tokens_decoder()
        is_end = len(behind) > 0 and behind[0] in added and added[behind[0]].special
        return ids, behind[0] if is_end else -1


def find_templates(folder: pathlib.Path) -> dict[str, str]:
    """The templates of a folder by name; that of a folder with only one is called "default"."""
    templates: dict[str, str] = {}
    for name in ("tokenizer_config.json", "chat_template.json"):
        found = read_json(folder / name).get("chat_template")
        if isinstance(found, str):
            found = [{"name": "default", "template": found}]
        for entry in found or []:
            if not (isinstance(entry, dict) and isinstance(entry.get("template"), str) and "name" in entry):
                raise BadRequest(f'{name}: chat_template: expected a text, or a list of {{"name", "template"}}')
            templates.setdefault(str(entry["name"]), entry["template"])
    # Files of their own are what newer folders have; they count before what is in the JSON.
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    for name, path in files.items():
        if path.exists():
            try:
                templates[name] = path.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise BadRequest(f"cannot read {path.name}: {error}") from error
    if not templates:
        raise BadRequest(
            'no chat template: neither "chat_template" in tokenizer_config.json nor chat_template.jinja; take the '
            'tokenizer folder of a chat model, or give {"prompt", "completion"} examples'
        )
    return templates


def _compile(text: str, name: str) -> "jinja2.Template":
    import jinja2
    import jinja2.ext
    import jinja2.sandbox

    if tuple(int(part) for part in jinja2.__version__.split(".")[:3]) < OLDEST_JINJA2:
        oldest = ".".join(map(str, OLDEST_JINJA2))
        raise ImportError(f"jinja2 {jinja2.__version__} is too old, chat templates need {oldest} or later")

    class Generation(jinja2.ext.Extension):
        """{% generation %} marks what an assistant says, for masks that are made another way."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    # Not jinja2's own filter, which writes for HTML.
    environment.filters["tojson"] = lambda value, ensure_ascii=False, indent=None, separators=None, sort_keys=False: (
        json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    )
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(text)
    except jinja2.TemplateError as error:
        raise BadRequest(f"the chat template '{name}' does not parse: {error}") from error


def _special_tokens(folder: pathlib.Path) -> dict[str, str]:
    """bos_token, eos_token and the others that templates write by name."""
    tokens: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for key, value in read_json(folder / name).items():
            text = token_text(value) if key.endswith("_token") else None
            if text is not None:
                tokens[key] = text
    return tokens


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    """As templates expect it: what is null in JSON is not there, and `weight` is ours."""
    return {key: value for key, value in message.items() if value is not None and key != "weight"}


def _difference(expected: str, got: str) -> str:
    """Where two texts that should begin alike do not, for a message."""
    at = next((i for i, (a, b) in enumerate(zip(expected, got)) if a != b), min(len(expected), len(got)))
    begin = max(0, at - 10)
    return f"{expected[begin : at + 20]!r} became {got[begin : at + 20]!r}"

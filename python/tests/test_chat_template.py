"""halfstep.chat_template: conversations, against `transformers` with the same folder."""

import json
import struct

import pytest
import tokenizers
import transformers
from tokenizers import AddedToken

from halfstep import tokenize
from test_tokenize import converse, message

# Written for these tests in the manner of the families that they are called after.
QWEN_LIKE = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n' }}{% endif %}
    {{- 'Tools:' }}
    {%- for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages and messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- generation %}
        {{- message.content if message.content is defined else '' }}
        {%- for call in message.tool_calls or [] %}{{ '<call>' + call | tojson + '</call>' }}{% endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endgeneration %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
LLAMA_LIKE = """
{{- bos_token }}
{%- if strftime_now is defined %}{% set date = strftime_now('%Y') %}{% endif %}
{%- for message in messages %}
    {%- if message['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}
    {%- set head = '<|head|>' + message['role'] + '<|/head|>\\n\\n' %}
    {{- head + message['content'] | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|/head|>\\n\\n' }}
{%- endif %}
"""
MISTRAL_LIKE = """{{ bos_token }}{% for m in messages %}
{% if m.role == 'user' %}
[INST] {{ m.content }} [/INST]{% else %}
{{ m.content }}{{ eos_token }}{% endif %}
{% endfor %}"""
# Leaves out the reasoning of turns that others follow.
FORGETFUL = """
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.role == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}
    {{- m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|head|>", "<|/head|>", "<s>", "</s>"]

HI = {"role": "user", "content": "Say “hi”,\n please é 中"}
HO = {"role": "assistant", "content": "  hi — ho\n\n"}
MORE = {"role": "user", "content": "again"}
AGAIN = {"role": "assistant", "content": "\nhi again  é中"}
SYSTEM = {"role": "system", "content": "You are brief. "}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "a < b & \"c\" — é", "parameters": {"z": 1, "a": [None, True]}}}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": {"y": 1, "x": 2}}}]}
RESULT = {"role": "tool", "content": "3"}
CONVERSATIONS = [
    {"messages": [HI, HO]},
    {"messages": [SYSTEM, HI, HO, MORE, AGAIN]},
    {"messages": [SYSTEM, HI, HO, MORE]},
]


@pytest.fixture(scope="module")
def make_folder(bpe, tmp_path_factory):
    """A folder with a byte-level BPE and this chat template (or these files)."""

    def make(template=None, files=None):
        folder = tmp_path_factory.mktemp("chat")
        tokenizer = tokenizers.Tokenizer.from_str(bpe.to_str())
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": {"content": "</s>", "__type": "AddedToken"}}
        if template is not None:
            config["chat_template"] = template
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        for name, content in (files or {}).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content)
        return folder

    return make


def encode(folder, *conversations):
    return tokenize.FolderTokenizer(folder).encode_chats(list(conversations))


def reference(folder, conversation, **more):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer.apply_chat_template(
        conversation["messages"], tools=conversation.get("tools"), tokenize=True, return_dict=True, **more)


@pytest.mark.parametrize("template", [QWEN_LIKE, LLAMA_LIKE, MISTRAL_LIKE])
def test_ids_are_those_of_transformers(make_folder, template):
    folder = make_folder(template)
    for conversation, (ids, _) in zip(CONVERSATIONS, encode(folder, *CONVERSATIONS), strict=True):
        assert ids == reference(folder, conversation)["input_ids"]


def test_tools_and_calls_are_those_of_transformers(make_folder):
    folder = make_folder(QWEN_LIKE)
    conversation = {"messages": [SYSTEM, HI, CALL, RESULT, AGAIN], "tools": TOOLS, "id": 7}
    ((ids, _),) = encode(folder, conversation)
    assert ids == reference(folder, conversation)["input_ids"]


def test_what_is_learned_is_what_transformers_marks_as_generated(make_folder):
    # {% generation %} stands around all turns of the template, so its mask is taken of one turn at a
    # time: the last of a conversation, where all that is marked before is cut off.
    folder = make_folder(QWEN_LIKE)
    conversation = {"messages": [SYSTEM, HI, HO, MORE, AGAIN]}
    ((ids, mask),) = encode(folder, conversation)
    expected = [0] * len(ids)
    for end in (3, 5):
        part = {"messages": conversation["messages"][:end]}
        marked = reference(folder, part, return_assistant_tokens_mask=True)["assistant_masks"]
        start = len(marked) - marked[::-1].index(0)  # after the turn's head, which is not marked
        expected[start : len(marked)] = [1] * (len(marked) - start)
    assert list(mask) == expected
    assert 0 < sum(expected) < len(expected)


def learned_text(folder, conversation):
    tokenizer = tokenize.FolderTokenizer(folder)
    ((ids, mask),) = tokenizer.encode_chats([conversation])
    return tokenizer.decode([[token for token, learned in zip(ids, mask) if learned]])[0]


def test_learned_is_what_the_assistant_says_and_the_end_of_its_turn(make_folder):
    conversation = CONVERSATIONS[1]
    qwen = HO["content"] + "<|im_end|>\n" + AGAIN["content"] + "<|im_end|>\n"
    assert learned_text(make_folder(QWEN_LIKE), conversation) == qwen
    llama = HO["content"].strip() + "</s>" + AGAIN["content"].strip() + "</s>"
    assert learned_text(make_folder(LLAMA_LIKE), conversation) == llama
    not_first = {"messages": [HI, HO | {"weight": 0}, MORE, AGAIN | {"weight": 1}]}
    assert learned_text(make_folder(LLAMA_LIKE), not_first) == AGAIN["content"].strip() + "</s>"


def test_places_of_tokens_hold_with_a_normalizer_and_trimmed_offsets(make_folder):
    folder = make_folder(LLAMA_LIKE)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "NFC"}
    content["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    conversation = {"messages": [HI, {"role": "assistant", "content": "a  b e\u0301\n\n\n c"}]}
    assert learned_text(folder, conversation) == "a  b \u00e9\n\n\n c</s>"
    ((ids, _),) = encode(folder, conversation)
    assert ids == reference(folder, conversation)["input_ids"]


def test_where_the_template_comes_from(make_folder):
    named = [{"name": "default", "template": LLAMA_LIKE}, {"name": "tool_use", "template": QWEN_LIKE}]
    ((expected, _),) = encode(make_folder(LLAMA_LIKE), CONVERSATIONS[0])
    for folder in (
        make_folder(named),
        make_folder(None, {"chat_template.jinja": LLAMA_LIKE}),
        make_folder(QWEN_LIKE, {"chat_template.jinja": LLAMA_LIKE}),
        make_folder(None, {"chat_template.json": json.dumps({"chat_template": LLAMA_LIKE})}),
    ):
        ((ids, _),) = encode(folder, CONVERSATIONS[0])
        assert ids == expected
    with_tools = CONVERSATIONS[0] | {"tools": TOOLS}
    for folder in (
        make_folder(named),
        make_folder(None, {"chat_template.jinja": LLAMA_LIKE, "additional_chat_templates/tool_use.jinja": QWEN_LIKE}),
    ):
        ((ids, _),) = encode(folder, with_tools)
        assert ids == encode(make_folder(QWEN_LIKE), with_tools)[0][0]
        assert ids == reference(folder, with_tools)["input_ids"]


@pytest.mark.parametrize(
    ("template", "messages", "complaint"),
    [
        (FORGETFUL, [HI, HO], "message 1: the chat template's generation prompt is no beginning"),
        (FORGETFUL.replace("{{ '<think></think>' }}", "{{ '<think>' }}").replace(
            "assistant\\n' }}{% endif %}", "assistant\\n<think>' }}{% endif %}"), [HI, HO, MORE, AGAIN],
         "message 1: the chat template rewrites this turn once others follow"),
        ("{{ raise_exception('only users') }}", [HI, HO], "the chat template: only users"),
        ("{{ messages[0].content.nothing.more }}", [HI, HO], "the chat template: "),
        ("{{ 1 / 0 }}", [HI, HO], "ZeroDivisionError"),
        ("{% for %}", [HI, HO], "does not parse"),
        ([{"name": "rag", "template": "x"}], [HI, HO], "none is named default"),
        ([{"name": "rag"}], [HI, HO], "expected a text, or a list"),
        (None, [HI, HO], "no chat template"),
        ("{{ messages.append(1) }}", [HI, HO], "the chat template: "),
        ("{{ ''.__class__.__mro__ }}", [HI, HO], "the chat template: "),
    ],
)
def test_what_cannot_be_learned_is_said(make_folder, template, messages, complaint):
    # The forgetful one adds what the generation prompt lacks: learnable, but not in the middle.
    if complaint.endswith("no beginning"):
        template = template.replace("assistant\\n' }}{% endif %}", "assistant:' }}{% endif %}")
    payload = json.dumps({"messages": messages}).encode()
    request = struct.pack("<QQ", 1, len(payload)) + payload
    _, (code, answer), (again, _) = converse(make_folder(template), message(tokenize.CHAT, request) * 2)
    assert code == again == tokenize.BAD_REQUEST
    assert complaint in answer.decode()


def test_over_the_pipe(make_folder):
    folder = make_folder(QWEN_LIKE)
    payloads = [json.dumps(conversation).encode() for conversation in CONVERSATIONS]
    body = b"".join(struct.pack("<Q", len(payload)) + payload for payload in payloads)
    request = message(tokenize.CHAT, struct.pack("<Q", len(payloads)) + body)
    _, (code, answer) = converse(folder, request)
    assert code == tokenize.OK
    expected = b"".join(
        struct.pack(f"<Q{len(ids)}i", len(ids), *ids) + mask for ids, mask in encode(folder, *CONVERSATIONS))
    assert answer == expected


@pytest.mark.parametrize(("template", "end"), [(QWEN_LIKE, "<|im_end|>"), (LLAMA_LIKE, "</s>"), (FORGETFUL, None)])
def test_a_prompt_for_generation_and_the_token_that_ends_the_answer(make_folder, template, end):
    # The forgetful one puts something between the generation prompt and the answer.
    folder = make_folder(template)
    tokenizer = tokenize.FolderTokenizer(folder)
    ids, stop = tokenizer.chat_prompt(HI["content"])
    assert ids == reference(folder, {"messages": [HI]}, add_generation_prompt=True)["input_ids"]
    assert stop == (-1 if end is None else tokenizer._tokenizer.token_to_id(end))
    payload = HI["content"].encode()
    _, (code, answer) = converse(folder, message(tokenize.PROMPT, struct.pack("<QQ", 1, len(payload)) + payload))
    assert code == tokenize.OK
    assert answer == struct.pack(f"<Q{len(ids)}iq", len(ids), *ids, stop)


def test_without_jinja2_the_package_is_named(make_folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    payload = json.dumps(CONVERSATIONS[0]).encode()
    request = message(tokenize.CHAT, struct.pack("<QQ", 1, len(payload)) + payload)
    (greeting, _), (code, answer) = converse(make_folder(QWEN_LIKE), request)
    assert greeting == tokenize.OK, "text needs no templates"
    assert code == tokenize.MISSING_PACKAGE and b"jinja2" in answer


def test_an_old_jinja2_is_refused(make_folder, monkeypatch):
    monkeypatch.setattr("jinja2.__version__", "3.1.5")
    with pytest.raises(ImportError, match="3.1.6 or later"):
        encode(make_folder(QWEN_LIKE), CONVERSATIONS[0])

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from canopy.text.detokenizer import Detokenizer


def decode_bytes(token_ids: list[int]) -> str:
    """A tokenizer whose tokens are single bytes: every non-ASCII character is split."""
    return bytes(token_ids).decode("utf-8", errors="replace")


def decode_words(token_ids: list[int]) -> str:
    """A tokenizer that drops the space before the first word of a text, as SentencePiece does."""
    return " ".join(f"w{token_id}" for token_id in token_ids)


def pieces(token_ids: list[int], decode=decode_bytes, context: list[int] = ()) -> list[str]:
    detokenizer = Detokenizer(decode, list(context))
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@given(st.text())
def test_pieces_add_up_to_the_text(text):
    assert "".join(pieces(list(text.encode()))) == text


@given(st.text(alphabet="aé漢🌳\u200d👩"))
def test_no_piece_holds_part_of_a_character(text):
    assert all("�" not in piece for piece in pieces(list(text.encode())))


@given(st.lists(st.integers(0, 255), max_size=40))
def test_stray_bytes_never_stop_the_stream(token_ids):
    assert len(pieces([*token_ids, *b"ok"])) == len(token_ids) + 3
    assert "".join(pieces([*token_ids, *b"ok"])).endswith("ok")


def test_the_space_before_the_first_emitted_word_is_kept():
    assert "".join(pieces([7, 8], decode_words, context=[5, 6])) == " w7 w8"


def test_an_incomplete_character_at_the_end_is_given_out_once():
    assert pieces(list("é".encode())[:1]) == ["", "�"]


def byte_fallback_tokenizer() -> Tokenizer:
    """As of Llama 2 and Mistral: what the vocabulary lacks is spelled in bytes."""
    words = ["<unk>", "▁", "a", "b", "é", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


FALLBACK = byte_fallback_tokenizer()


def spelled(text: str) -> list[int]:
    return FALLBACK.encode(text.replace(" ", "▁")).ids


@given(st.text("ab é🌳😀漢", max_size=6), st.text("ab é🌳😀漢", max_size=6))
def test_bytes_of_the_prompt_never_spoil_the_answer(prompt, answer):
    answer_ids = spelled(answer)
    context = spelled("b" + prompt)[-6:]
    assert "".join(pieces(answer_ids, FALLBACK.decode, context)) == answer


@pytest.mark.parametrize("kept", [1, 2, 3])
@pytest.mark.parametrize("before", ["", "a", "🌳"])
def test_a_cut_character_at_the_end_is_one_replacement_character(before, kept):
    token_ids = [*spelled(before), *spelled("😀")[:kept]]
    assert "".join(pieces(token_ids, FALLBACK.decode, spelled("b"))) == before + "�"


def test_a_stray_byte_after_a_whole_character_spoils_no_other():
    token_ids = [*spelled("🌳"), spelled("😀")[0], *spelled("ab")]
    assert "".join(pieces(token_ids, FALLBACK.decode, spelled("b"))) == "🌳�ab"

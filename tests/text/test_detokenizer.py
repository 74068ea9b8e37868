from hypothesis import given
from hypothesis import strategies as st

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

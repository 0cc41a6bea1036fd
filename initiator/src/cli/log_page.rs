//! Reading log pages, in pieces as large as one command of ours takes.
use ironside_common::nvme::admin::GetLogPage;

use super::error::CliError;
use super::inquiry::Subject;
use crate::host::IDENTIFY_LENGTH;

/// Bytes of one piece.
pub(super) const PIECE: u32 = IDENTIFY_LENGTH as u32;

/// Reads what is asked for, however long. Until the last piece of it the controller's event stays.
pub(super) fn read(subject: &Subject, asked: GetLogPage) -> Result<Vec<u8>, CliError> {
    let mut page = Vec::new();
    for piece in pieces(asked) {
        let length = u32::try_from(piece.length).expect("a piece is short");
        page.extend(subject.ask(piece.to_command(0), length)?.data);
    }
    Ok(page)
}

fn pieces(asked: GetLogPage) -> impl Iterator<Item = GetLogPage> {
    let whole = u64::from(PIECE);
    (0..asked.length.div_ceil(whole)).map(move |index| {
        let at = index * whole;
        let length = (asked.length - at).min(whole);
        let is_last = at + length == asked.length;
        let offset = asked.offset.wrapping_add(at);
        GetLogPage { length, offset, retain_event: asked.retain_event || !is_last, ..asked }
    })
}

#[cfg(test)]
mod tests {
    use ironside_common::nvme::log_page::LogPageId;

    use super::*;

    #[test]
    fn a_long_page_is_read_in_pieces() {
        let asked = GetLogPage { offset: 8, ..GetLogPage::new(LogPageId::ANA, 1, 8196) };
        let pieces: Vec<_> =
            pieces(asked).map(|piece| (piece.offset, piece.length, piece.retain_event)).collect();
        assert_eq!(pieces, [(8, 4096, true), (4104, 4096, true), (8200, 4, false)]);
    }
}

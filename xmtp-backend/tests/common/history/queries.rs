//! What was read by pages, against the log.

use super::{Found, History, Id, Log, Page, TopicNumber, Violation, Visible};

pub(super) fn check(history: &History, log: &Log<'_>, visible: &Visible, found: &mut Found) {
    for (number, page) in history.pages.iter().enumerate() {
        check_page(number, page, log, visible, found);
    }
    found.summary.pages = history.pages.len();
}

fn check_page(number: usize, page: &Page, log: &Log<'_>, visible: &Visible, found: &mut Found) {
    let asked = |topic: TopicNumber| page.topics.iter().any(|(asked, _)| *asked == topic);
    if page.rows.len() > page.limit || page.rows.iter().any(|row| !asked(row.topic)) {
        found.add(Violation::PageIsNoSlice { page: number });
        return;
    }
    let mut left = false;
    for (topic, cursor) in &page.topics {
        let Some(end) = slice_end(page, *topic, *cursor, log) else {
            found.add(Violation::PageIsNoSlice { page: number });
            return;
        };
        let rest = &log.rows(*topic)[end..];
        left |= !rest.is_empty();
        let owed = visible.before(*topic, page.sent);
        let missing = rest.iter().find(|row| row.id <= owed && !row.pruned);
        if let Some(row) = missing.filter(|_| !page.has_more) {
            let missing = row.id;
            let page = number;
            found.add(Violation::PageMissesOwnWrite { page, missing });
        }
    }
    if page.has_more && (!left || page.rows.is_empty()) {
        found.add(Violation::MoreIsNothing { page: number });
    }
}

/// Answers where in the topic the page's rows end, if they are the next rows after the cursor.
fn slice_end(page: &Page, topic: TopicNumber, cursor: Id, log: &Log<'_>) -> Option<usize> {
    let rows = log.rows(topic);
    let mut place = log.place_after(topic, cursor);
    for seen in page.rows.iter().filter(|row| row.topic == topic) {
        while rows
            .get(place)
            .is_some_and(|row| row.pruned && row.id != seen.id)
        {
            place += 1;
        }
        let row = rows.get(place)?;
        if (row.id, row.print) != (seen.id, seen.print) {
            return None;
        }
        place += 1;
    }
    Some(place)
}

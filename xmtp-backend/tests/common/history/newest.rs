//! What was read as the newest of its topic, against the log.

use std::collections::HashMap;

use super::{Found, History, Log, Newest, Violation, Visible};

pub(super) fn check(history: &History, log: &Log<'_>, visible: &Visible, found: &mut Found) {
    for (read, newest) in history.newest.iter().enumerate() {
        check_read(read, newest, log, visible, found);
    }
    found.summary.newest = history.newest.len();
}

fn check_read(read: usize, newest: &Newest, log: &Log<'_>, visible: &Visible, found: &mut Found) {
    let mut told = HashMap::new();
    for row in &newest.rows {
        let rows = log.rows(row.topic);
        let place = rows.binary_search_by_key(&row.id, |row| row.id);
        let is_row = place.is_ok_and(|place| rows[place].print == row.print);
        let is_again = told.insert(row.topic, row.id).is_some();
        if !is_row || is_again || !newest.topics.contains(&row.topic) {
            let seen = row.id;
            found.add(Violation::NewestIsNoRow { read, seen });
        }
    }
    for topic in &newest.topics {
        let seen = told.get(topic).copied().unwrap_or(0);
        let visible = visible.before(*topic, newest.sent);
        if seen < visible {
            found.add(Violation::NewestIsStale {
                read,
                seen,
                visible,
            });
        }
    }
}

//! What a session is told and has not looked at yet.
//!
//! Invariant: a topic's envelopes reach the session in order. When the mailbox is full it keeps
//! the position of a topic instead of the envelope, and from then on only positions of that topic,
//! so no envelope overtakes a position.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use xmtp_proto::id::{SequenceId, Topic};

use crate::limits::{MAILBOX_BYTES, MAILBOX_NOTICES};
use crate::session::Row;

/// The mailbox of one session.
#[derive(Debug)]
pub(super) struct Mailbox {
    /// The number of the tail that tells it.
    tail: u64,
    mail: Mutex<Mail>,
    filled: Notify,
}

/// What is in a mailbox: first the envelopes, then the positions.
#[derive(Debug, Default)]
pub(super) struct Mail {
    pub(super) rows: Vec<Arc<Row>>,
    pub(super) positions: HashMap<Topic, SequenceId>,
    bytes: usize,
}

impl Mailbox {
    pub(super) fn new(tail: u64) -> Self {
        Self {
            tail,
            mail: Mutex::default(),
            filled: Notify::new(),
        }
    }

    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    pub(super) fn tell(&self, row: &Arc<Row>) {
        self.mail.lock().add(row);
        self.filled.notify_one();
    }

    /// Waits until there may be something.
    pub(super) async fn filled(&self) {
        self.filled.notified().await;
    }

    pub(super) fn take(&self) -> Mail {
        std::mem::take(&mut self.mail.lock())
    }
}

impl Mail {
    fn add(&mut self, row: &Arc<Row>) {
        let (topic, id) = (row.topic, row.sequence_id);
        let bytes = self.bytes + row.counted();
        let full = self.rows.len() >= MAILBOX_NOTICES || bytes > MAILBOX_BYTES;
        match self.positions.entry(topic) {
            Entry::Occupied(mut position) => {
                position.insert(id);
            }
            Entry::Vacant(position) if full => {
                position.insert(id);
            }
            Entry::Vacant(_) => {
                self.bytes = bytes;
                self.rows.push(row.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::fixture::row;

    #[test]
    fn a_full_mailbox_keeps_positions_in_order() {
        let (full, other) = (
            Topic::welcome_destination([1; 32]),
            Topic::welcome_destination([2; 32]),
        );
        let mailbox = Mailbox::new(0);
        for id in 1..=MAILBOX_NOTICES as u32 {
            mailbox.tell(&row(full, id, 1));
        }
        mailbox.tell(&row(other, 5000, 1));
        mailbox.tell(&row(full, 5001, 1));
        mailbox.tell(&row(other, 5002, 1));
        let mail = mailbox.take();
        assert_eq!(mail.rows.len(), MAILBOX_NOTICES);
        assert_eq!(mail.positions[&full], 5001.into());
        assert_eq!(mail.positions[&other], 5002.into());
        mailbox.tell(&row(other, 5003, 1));
        let mail = mailbox.take();
        assert_eq!((mail.rows.len(), mail.positions.len()), (1, 0));
    }
}

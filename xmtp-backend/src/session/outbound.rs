//! What waits for the transport, bounded in frames and bytes.
//!
//! Messages and acknowledgements go in the order in which they were queued, because an
//! acknowledgement is the border between what is sent for a topic before it and after it. Pings and
//! pongs have no place in that order and go first, behind nothing but the start of the stream.
//! Messages may use only part of either bound, so that control frames still find room behind a
//! full backlog, and a part of it is reserved while a turn is being fetched.

use std::collections::VecDeque;
use std::sync::Arc;

use tonic::Status;
use xmtp_proto::id::{SequenceId, Topic};

use super::{Row, Tick};
use crate::limits::{
    FRAME_BYTES, OUTBOUND_BYTES, OUTBOUND_CONTROL_FRAMES, OUTBOUND_FRAMES, OUTBOUND_MESSAGES_BYTES,
    TURN_BYTES, TURN_FRAMES,
};
use crate::services::Failure;

/// A frame to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Started {
        keepalive_interval_ms: u32,
        /// The targets of a fixed stream; empty on one whose interest changes.
        targets: Vec<(Topic, SequenceId)>,
    },
    Applied {
        id: u64,
        added: Vec<(Topic, SequenceId)>,
    },
    Messages(Vec<Arc<Row>>),
    Ping {
        nonce: u64,
    },
    Pong {
        nonce: u64,
    },
    Keepalive,
}

/// What a control frame takes beside its targets, in bytes.
const CONTROL_BYTES: usize = 32;

/// What one target takes in an acknowledgement, in bytes: the topic, the number and their tags.
pub(super) const TARGET_BYTES: usize = Topic::MAX_LEN + 20;

#[derive(Debug)]
struct Queued {
    frame: Frame,
    bytes: usize,
    since: Tick,
}

/// The queue of one stream.
#[derive(Debug)]
pub(super) struct Outbound {
    ordered: VecDeque<Queued>,
    /// Pings and pongs.
    urgent: VecDeque<Queued>,
    bytes: usize,
    /// The bytes of rows that no other stream holds.
    alone: usize,
    /// Set while a turn is being fetched, whose rows must find room.
    reserved: bool,
    max_frame_bytes: usize,
}

impl Frame {
    /// Returns the name of its kind.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::Applied { .. } => "applied",
            Self::Messages(_) => "messages",
            Self::Ping { .. } => "ping",
            Self::Pong { .. } => "pong",
            Self::Keepalive => "keepalive",
        }
    }
}

impl Outbound {
    pub(super) fn new(max_frame_bytes: usize) -> Self {
        Self {
            ordered: VecDeque::new(),
            urgent: VecDeque::new(),
            bytes: 0,
            alone: 0,
            reserved: false,
            max_frame_bytes,
        }
    }

    /// Hands out the next frame, and since when it has waited.
    pub(super) fn take(&mut self) -> Option<(Frame, Tick)> {
        let first = self.ordered.front().map(|queued| &queued.frame);
        let starts = matches!(first, Some(Frame::Started { .. }));
        let (one, other) = match starts {
            true => (&mut self.ordered, &mut self.urgent),
            false => (&mut self.urgent, &mut self.ordered),
        };
        let queued = one.pop_front().or_else(|| other.pop_front())?;
        self.bytes -= queued.bytes;
        if let Frame::Messages(rows) = &queued.frame {
            self.alone -= rows.iter().map(|row| row.counted_alone()).sum::<usize>();
        }
        Some((queued.frame, queued.since))
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.max_frame_bytes);
    }

    /// Returns the bytes of rows that no other stream holds.
    pub(super) fn alone(&self) -> usize {
        self.alone
    }

    /// Returns since when the oldest frame has waited.
    pub(super) fn oldest(&self) -> Option<Tick> {
        let fronts = [self.ordered.front(), self.urgent.front()];
        fronts
            .into_iter()
            .flatten()
            .map(|queued| queued.since)
            .min()
    }

    /// Tells whether another control frame is within the bound of frames.
    pub(super) fn has_control_room(&self) -> bool {
        self.frames() < OUTBOUND_FRAMES
    }

    /// Queues a control frame, or says which bound it breaks.
    pub(super) fn push_control(&mut self, now: Tick, frame: Frame) -> Result<(), Status> {
        let bytes = CONTROL_BYTES
            + match &frame {
                Frame::Applied { added: targets, .. } | Frame::Started { targets, .. } => {
                    targets.len() * TARGET_BYTES
                }
                _ => 0,
            };
        if bytes > self.max_frame_bytes {
            let message = "an acknowledgement is larger than a frame may be";
            return Err(Failure::FrameTooLarge.status(message));
        }
        if !self.has_control_room() || self.bytes + bytes > OUTBOUND_BYTES {
            return Err(Failure::SlowConsumer.status("the client reads too slowly"));
        }
        self.push(now, frame, bytes);
        Ok(())
    }

    /// Puts the newest of the ordered frames before all of them, which breaks their order.
    #[cfg(test)]
    pub(super) fn overtake(&mut self) {
        if let Some(newest) = self.ordered.pop_back() {
            self.ordered.push_front(newest);
        }
    }

    /// Reserves room for the rows of a turn, if there is any.
    pub(super) fn reserve_turn(&mut self) -> bool {
        let room = !self.reserved
            && self.bytes + TURN_BYTES <= OUTBOUND_MESSAGES_BYTES
            && self.frames() + TURN_FRAMES + OUTBOUND_CONTROL_FRAMES <= OUTBOUND_FRAMES;
        self.reserved |= room;
        room
    }

    /// Gives the reserved room back.
    pub(super) fn release_turn(&mut self) {
        self.reserved = false;
    }

    /// Queues the rows of one topic, which stay together, into room that was reserved.
    pub(super) fn push_batch(&mut self, now: Tick, rows: Vec<Arc<Row>>) {
        self.append(now, rows);
    }

    /// Queues one envelope as it was told, unless there is no room.
    pub(super) fn push_live(&mut self, now: Tick, row: &Arc<Row>) -> bool {
        let (turn_bytes, turn_frames) = match self.reserved {
            true => (TURN_BYTES, TURN_FRAMES),
            false => (0, 0),
        };
        let bytes = self.bytes + turn_bytes + row.counted();
        let frames = self.frames() + turn_frames + 1 + OUTBOUND_CONTROL_FRAMES;
        let room = bytes <= OUTBOUND_MESSAGES_BYTES && frames <= OUTBOUND_FRAMES;
        if room {
            self.append(now, vec![row.clone()]);
        }
        room
    }

    fn frames(&self) -> usize {
        self.ordered.len() + self.urgent.len()
    }

    /// Appends to the last frame if that is one of messages and has room, else adds a frame.
    fn append(&mut self, now: Tick, rows: Vec<Arc<Row>>) {
        let bytes: usize = rows.iter().map(|row| row.counted()).sum();
        self.alone += rows.iter().map(|row| row.counted_alone()).sum::<usize>();
        let full = FRAME_BYTES.min(self.max_frame_bytes);
        if let Some(Queued {
            frame: Frame::Messages(last),
            bytes: held,
            ..
        }) = self.ordered.back_mut()
            && *held + bytes <= full
        {
            last.extend(rows);
            *held += bytes;
            self.bytes += bytes;
            return;
        }
        self.push(now, Frame::Messages(rows), bytes);
    }

    fn push(&mut self, now: Tick, frame: Frame, bytes: usize) {
        self.bytes += bytes;
        let queue = match frame {
            Frame::Ping { .. } | Frame::Pong { .. } => &mut self.urgent,
            _ => &mut self.ordered,
        };
        queue.push_back(Queued {
            frame,
            bytes,
            since: now,
        });
    }
}

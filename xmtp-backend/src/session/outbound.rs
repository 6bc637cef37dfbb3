//! What waits for the transport: one queue in the order of sending, bounded in frames and bytes.
//!
//! Messages may use only part of either bound, so that control frames still find room behind a
//! full backlog, and a part of it is reserved while a turn is being fetched.

use std::collections::VecDeque;

use tonic::Status;
use xmtp_proto::id::{SequenceId, Topic};

use super::Tick;
use crate::limits::{
    FRAME_BYTES, OUTBOUND_BYTES, OUTBOUND_CONTROL_FRAMES, OUTBOUND_FRAMES, OUTBOUND_MESSAGES_BYTES,
    OVERHEAD_BYTES, TURN_BYTES, TURN_FRAMES,
};
use crate::services::Failure;
use crate::store::Envelope;

/// A frame to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Started {
        keepalive_interval_ms: u32,
    },
    Applied {
        id: u64,
        added: Vec<(Topic, SequenceId)>,
    },
    Messages(Vec<Envelope>),
    Ping {
        nonce: u64,
    },
    Pong {
        nonce: u64,
    },
}

/// What a control frame takes beside its targets, in bytes.
const CONTROL_BYTES: usize = 32;

/// What one target takes in an acknowledgement, in bytes: the topic, the number and their tags.
const TARGET_BYTES: usize = Topic::MAX_LEN + 20;

#[derive(Debug)]
struct Queued {
    frame: Frame,
    bytes: usize,
    since: Tick,
}

/// The queue of one stream.
#[derive(Debug)]
pub(super) struct Outbound {
    frames: VecDeque<Queued>,
    bytes: usize,
    /// Set while a turn is being fetched, whose rows must find room.
    reserved: bool,
    max_frame_bytes: usize,
}

impl Outbound {
    pub(super) fn new(max_frame_bytes: usize) -> Self {
        Self {
            frames: VecDeque::new(),
            bytes: 0,
            reserved: false,
            max_frame_bytes,
        }
    }

    /// Hands out the oldest frame.
    pub(super) fn take(&mut self) -> Option<Frame> {
        let queued = self.frames.pop_front()?;
        self.bytes -= queued.bytes;
        Some(queued.frame)
    }

    /// Returns since when the oldest frame has waited.
    pub(super) fn oldest(&self) -> Option<Tick> {
        self.frames.front().map(|queued| queued.since)
    }

    /// Queues a control frame, or says which bound it breaks.
    pub(super) fn push_control(&mut self, now: Tick, frame: Frame) -> Result<(), Status> {
        let bytes = CONTROL_BYTES
            + match &frame {
                Frame::Applied { added, .. } => added.len() * TARGET_BYTES,
                _ => 0,
            };
        if bytes > self.max_frame_bytes {
            let message = "an acknowledgement is larger than a frame may be";
            return Err(Failure::FrameTooLarge.status(message));
        }
        if self.frames.len() >= OUTBOUND_FRAMES || self.bytes + bytes > OUTBOUND_BYTES {
            return Err(Failure::SlowConsumer.status("the client reads too slowly"));
        }
        self.push(now, frame, bytes);
        Ok(())
    }

    /// Reserves room for the rows of a turn, if there is any.
    pub(super) fn reserve_turn(&mut self) -> bool {
        let room = !self.reserved
            && self.bytes + TURN_BYTES <= OUTBOUND_MESSAGES_BYTES
            && self.frames.len() + TURN_FRAMES + OUTBOUND_CONTROL_FRAMES <= OUTBOUND_FRAMES;
        self.reserved |= room;
        room
    }

    /// Gives the reserved room back.
    pub(super) fn release_turn(&mut self) {
        self.reserved = false;
    }

    /// Queues the rows of one topic, which stay together, into room that was reserved.
    pub(super) fn push_batch(&mut self, now: Tick, rows: Vec<Envelope>) {
        self.append(now, rows);
    }

    /// Queues one envelope as it was told, or gives it back if there is no room.
    pub(super) fn push_live(&mut self, now: Tick, row: &Envelope) -> bool {
        let (turn_bytes, turn_frames) = match self.reserved {
            true => (TURN_BYTES, TURN_FRAMES),
            false => (0, 0),
        };
        let bytes = self.bytes + turn_bytes + size(row);
        let frames = self.frames.len() + turn_frames + 1 + OUTBOUND_CONTROL_FRAMES;
        let room = bytes <= OUTBOUND_MESSAGES_BYTES && frames <= OUTBOUND_FRAMES;
        if room {
            self.append(now, vec![row.clone()]);
        }
        room
    }

    /// Appends to the last frame if that is one of messages and has room, else adds a frame.
    fn append(&mut self, now: Tick, rows: Vec<Envelope>) {
        let bytes: usize = rows.iter().map(size).sum();
        let full = FRAME_BYTES.min(self.max_frame_bytes);
        if let Some(Queued {
            frame: Frame::Messages(last),
            bytes: held,
            ..
        }) = self.frames.back_mut()
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
        self.frames.push_back(Queued {
            frame,
            bytes,
            since: now,
        });
    }
}

fn size(row: &Envelope) -> usize {
    row.payload.len() + OVERHEAD_BYTES
}

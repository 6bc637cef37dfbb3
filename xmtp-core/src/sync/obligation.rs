//! One enrolled topic of a run, and what is said of it at the end.

use std::collections::BTreeMap;

use xmtp_proto::{SequenceId, Topic};

use super::{Cause, Obligation, Reason, TopicSync};
use crate::error::Coded;
use crate::subscription::progress::{Completion, Position, TopicProgress, completion};
use crate::transport::TransportError;

/// Causes named in one sentence.
const NAMED_CAUSES: usize = 3;

/// What keeps a topic from being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The last request failed in a way that may pass.
    Passing(&'static str),
    /// A request failed in a way that a repeat cannot change.
    Lasting(&'static str),
    /// The backend does not serve the topic.
    InvalidTopic,
    /// Pending data is at its bound.
    Capacity,
    /// The backend's order went back below F.
    GoneBack,
}

impl Obstacle {
    /// Classifies a failed request.
    pub(super) fn of(error: &TransportError) -> Self {
        if error.is_retryable() {
            Self::Passing(error.code())
        } else {
            Self::Lasting(error.code())
        }
    }

    fn is_final(self) -> bool {
        matches!(self, Self::Lasting(_) | Self::InvalidTopic | Self::GoneBack)
    }
}

/// One enrolled topic.
#[derive(Clone, Debug)]
pub(super) struct Enrolled {
    /// Its fixed target, once it is captured.
    pub(super) target: Option<SequenceId>,
    /// How far it is, as last read.
    pub(super) progress: TopicProgress,
    /// How it stands; complete stays complete.
    pub(super) completion: Completion,
    /// What keeps it from being received.
    pub(super) obstacle: Option<Obstacle>,
    /// The newest Welcome that led to the group, as last read.
    pub(super) welcome: SequenceId,
}

impl Enrolled {
    pub(super) fn new(progress: TopicProgress) -> Self {
        Self {
            target: None,
            progress,
            completion: Completion::Pending,
            obstacle: None,
            welcome: SequenceId::ZERO,
        }
    }

    /// Tells whether it is a group that this installation had left when it was last read.
    pub(super) fn is_left(&self) -> bool {
        matches!(
            self.progress.position,
            Position::Processed { is_left: true, .. }
        )
    }

    /// Takes what was read, against the fixed target.
    pub(super) fn update(&mut self, progress: TopicProgress) {
        self.progress = progress;
        let is_received = self
            .target
            .is_some_and(|target| self.progress.received >= target);
        if is_received && !self.obstacle.is_some_and(Obstacle::is_final) {
            self.obstacle = None;
        }
        if let (Some(target), false) = (self.target, self.is_complete()) {
            self.completion = completion(&self.progress, target);
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.completion == Completion::Complete
    }

    /// Tells whether this run can do nothing more for it.
    pub(super) fn is_stuck(&self) -> bool {
        matches!(self.completion, Completion::Blocked { .. })
            || self.obstacle.is_some_and(Obstacle::is_final)
    }

    /// Tells whether something through the target is still to be received.
    pub(super) fn is_short(&self) -> bool {
        !self.is_complete()
            && !self.is_stuck()
            && self
                .target
                .is_some_and(|target| self.progress.received < target)
    }

    pub(super) fn view(&self, topic: Topic) -> TopicSync {
        TopicSync {
            topic,
            target: self.target,
            received: self.progress.received,
            progress: self.progress.position.clone(),
            is_complete: self.is_complete(),
        }
    }

    /// Says what is left of it when the run ends for `reason`.
    pub(super) fn failure(&self, topic: Topic, reason: Reason) -> Obligation {
        Obligation {
            topic,
            target: self.target,
            received: self.progress.received,
            progress: self.progress.position.clone(),
            cause: self.cause(reason),
        }
    }

    fn cause(&self, reason: Reason) -> Cause {
        if let Completion::Blocked { code } = &self.completion {
            return Cause::Blocked { code: code.clone() };
        }
        match self.obstacle {
            Some(Obstacle::Passing(code)) => Cause::Connection {
                code,
                is_retryable: true,
            },
            Some(Obstacle::Lasting(code)) => Cause::Connection {
                code,
                is_retryable: false,
            },
            Some(Obstacle::InvalidTopic) => Cause::InvalidTopic,
            Some(Obstacle::GoneBack) => Cause::GoneBack,
            Some(Obstacle::Capacity) => Cause::Capacity,
            None if reason == Reason::Cancelled => Cause::Cancelled,
            None => Cause::Deadline {
                waiting: self.progress.waiting.clone(),
            },
        }
    }
}

/// Names the causes that hold the most topics.
pub(super) fn top_causes(obligations: &[Obligation]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for obligation in obligations {
        *counts.entry(obligation.cause.code()).or_default() += 1;
    }
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let named = counts.iter().take(NAMED_CAUSES);
    let named: Vec<String> = named
        .map(|(code, count)| format!("{code} ({count})"))
        .collect();
    named.join(", ")
}

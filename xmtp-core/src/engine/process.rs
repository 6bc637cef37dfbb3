//! Gives every topic with pending envelopes its fair turns.

use std::collections::HashSet;

use xmtp_proto::{Topic, TopicKind};

use super::context::Context;
use crate::error::Coded;
use crate::processing::{self, Left, MAX_READY_TOPICS, Schedule};
use crate::storage::{Domain, Durability, Priority, StorageError};

/// What wakes the processing worker.
const WAKES: u64 = Domain::Progress.bit() | Domain::Groups.bit();
/// Topics looked at in one read.
const TOPICS_PER_READ: usize = 256;

/// Runs until the database closes.
pub(super) async fn run(context: Context) {
    let mut changes = context.database.changes();
    let mut worker = Worker {
        context,
        schedule: Schedule::default(),
        resume_after: None,
        is_first_look: true,
        forced: HashSet::new(),
    };
    loop {
        worker.round().await;
        // What failed has left the ring: only topics with more to do are worth an instant round.
        if worker.schedule.is_empty() && changes.changed_or_poll(WAKES).await.is_err() {
            return;
        }
    }
}

struct Worker {
    context: Context,
    schedule: Schedule,
    /// Where the last look stopped because the ring was full.
    resume_after: Option<Topic>,
    /// Whether the topics were not all looked at yet since the start.
    is_first_look: bool,
    /// Topics with a blocked head that this process has not tried yet.
    forced: HashSet<Topic>,
}

impl Worker {
    /// Offers every topic that is ready, then gives each its turn once; a failure keeps no other
    /// topic (STR-072).
    async fn round(&mut self) {
        if let Err(error) = self.refill().await {
            failed(&error);
        }
        for _ in 0..self.schedule.len() {
            let Some(topic) = self.schedule.take() else {
                break;
            };
            match self.turn(topic).await {
                Ok(Left::More) => {
                    self.schedule.offer(topic);
                }
                Ok(Left::Nothing | Left::Stopped) => {}
                Err(error) => failed(&error),
            }
        }
    }

    async fn turn(&mut self, topic: Topic) -> Result<Left, StorageError> {
        // A new process may be one that knows more: what was blocked is tried once.
        let force = self.forced.remove(&topic);
        let processors = self.context.processors.clone();
        let report = self
            .context
            .database
            .write_queued(Priority::Background, Durability::Ordered, move |txn| {
                processing::turn(txn, &topic, &processors, force)
            })
            .await?;
        Ok(report.left)
    }

    /// Finds topics that are ready, from where the last look stopped.
    async fn refill(&mut self) -> Result<(), StorageError> {
        let mut after = self.resume_after.take();
        while self.schedule.len() < MAX_READY_TOPICS {
            let look = ready_topics(&self.context, after, self.is_first_look);
            let (ready, last) = look.await?;
            for (topic, force) in ready {
                self.schedule.offer(topic);
                if force {
                    self.forced.insert(topic);
                }
            }
            if last.is_none() {
                self.is_first_look = false;
                return Ok(());
            }
            after = last;
        }
        self.resume_after = after;
        Ok(())
    }
}

fn failed(error: &StorageError) {
    tracing::warn!(code = error.code(), "processing failed; it is repeated");
}

/// Topics that can have a turn, each with whether it is to be forced, and where to go on.
type Ready = (Vec<(Topic, bool)>, Option<Topic>);

/// Reads one page of topics that can have a turn now; blocked ones too, when asked for.
async fn ready_topics(
    context: &Context,
    after: Option<Topic>,
    with_blocked: bool,
) -> Result<Ready, StorageError> {
    let now = context.runtime.now_ns();
    context
        .database
        .read_queued(move |snapshot| {
            let topics = crate::receipt::store::pending_topics(snapshot, after, TOPICS_PER_READ)?;
            let last = (topics.len() == TOPICS_PER_READ).then(|| topics[TOPICS_PER_READ - 1]);
            let mut ready = Vec::new();
            for topic in topics {
                let kind = matches!(topic.kind(), TopicKind::Group | TopicKind::Identity);
                if !kind {
                    continue;
                }
                if processing::is_ready(snapshot, &topic, now)? {
                    ready.push((topic, false));
                } else if with_blocked && processing::is_blocked(snapshot, &topic)? {
                    ready.push((topic, true));
                }
            }
            Ok::<_, StorageError>((ready, last))
        })
        .await
}

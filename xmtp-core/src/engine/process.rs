//! Gives every topic with pending envelopes its fair turns.

use tracing::Instrument;
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
    };
    loop {
        if let Err(error) = worker.round().await {
            tracing::warn!(
                code = error.code(),
                "a processing round failed; it is repeated"
            );
        }
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
}

impl Worker {
    /// Offers every topic that is ready, then gives each its turn once.
    async fn round(&mut self) -> Result<(), StorageError> {
        self.refill().await?;
        for _ in 0..self.schedule.len() {
            let Some(topic) = self.schedule.take() else {
                break;
            };
            if self.turn(topic).await? == Left::More {
                self.schedule.offer(topic);
            }
        }
        Ok(())
    }

    async fn turn(&self, topic: Topic) -> Result<Left, StorageError> {
        let processors = self.context.processors.clone();
        let report = self
            .context
            .database
            .write_queued(Priority::Background, Durability::Ordered, move |txn| {
                processing::turn(txn, &topic, &processors, false)
            })
            .instrument(tracing::debug_span!("processing", topic = %topic.short()))
            .await?;
        Ok(report.left)
    }

    /// Finds topics that are ready, from where the last look stopped.
    async fn refill(&mut self) -> Result<(), StorageError> {
        let mut after = self.resume_after.take();
        while self.schedule.len() < MAX_READY_TOPICS {
            let (ready, last) = ready_topics(&self.context, after).await?;
            for topic in ready {
                self.schedule.offer(topic);
            }
            if last.is_none() {
                return Ok(());
            }
            after = last;
        }
        self.resume_after = after;
        Ok(())
    }
}

/// Reads one page of topics that can have a turn now, and where to go on.
async fn ready_topics(
    context: &Context,
    after: Option<Topic>,
) -> Result<(Vec<Topic>, Option<Topic>), StorageError> {
    let now = context.runtime.now_ns();
    context
        .database
        .read_queued(move |snapshot| {
            let topics = crate::receipt::store::pending_topics(snapshot, after, TOPICS_PER_READ)?;
            let last = (topics.len() == TOPICS_PER_READ).then(|| topics[TOPICS_PER_READ - 1]);
            let mut ready = Vec::new();
            for topic in topics {
                let kind = matches!(topic.kind(), TopicKind::Group | TopicKind::Identity);
                if kind && processing::is_ready(snapshot, &topic, now)? {
                    ready.push(topic);
                }
            }
            Ok::<_, StorageError>((ready, last))
        })
        .await
}

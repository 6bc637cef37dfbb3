//! Composes the rooms: starts, closes, and reports its stack.

pub mod context;
pub(crate) mod depend;
pub mod fetch;
mod groups;
mod process;
pub mod receive;
mod send;
#[cfg(test)]
pub(crate) mod tests;
mod welcomes;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use xmtp_proto::{GroupId, SequenceId, Topic};

use crate::delivery::Messages;
use crate::limits::MAX_LOCAL_READ_ROWS;
use crate::processing;
use crate::runtime::{RuntimeExt, TaskHandle};
use crate::send::Sender;
use crate::storage::StorageError;
use crate::subscription::{Scope, StatusWatch, SubscriptionHandle, Subscriptions};
use crate::sync::{self, SyncError, SyncReport, SyncRequest};
use crate::welcome;

pub use context::Context;

/// A running engine over one database; cheap to clone. It has no type parameters: every seam is
/// boxed.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    sender: Sender,
    subscriptions: Subscriptions,
    messages: Messages,
    scope: watch::Sender<Scope>,
    tasks: Mutex<Tasks>,
}

#[derive(Default)]
struct Tasks {
    subscription: Option<SubscriptionHandle>,
    running: Vec<TaskHandle>,
    is_live: bool,
    is_closed: bool,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.stack())
    }
}

impl Engine {
    /// Starts the workers of an engine. Nothing is received before [`Engine::go_live`] or a sync.
    pub fn start(context: Context) -> Self {
        let subscription = Subscriptions::start(context.clone());
        let subscriptions = subscription.subscriptions();
        let covering = subscriptions.clone();
        let covers = Arc::new(move |topic: &Topic| covering.covers(topic));
        let sender = Sender::new(context.clone(), covers);
        let runtime = context.runtime.clone();
        let running = vec![
            runtime.spawn("processing", process::run(context.clone())),
            runtime.spawn("welcomes", welcomes::run(context.clone())),
            runtime.spawn("dependencies", depend::run(context.clone())),
            runtime.spawn("sending", send::run(context.clone(), sender.clone())),
        ];
        let messages = Messages::new(context.database.clone());
        let tasks = Tasks {
            subscription: Some(subscription),
            running,
            ..Tasks::default()
        };
        Self {
            inner: Arc::new(Inner {
                context,
                sender,
                subscriptions,
                messages,
                scope: watch::Sender::default(),
                tasks: Mutex::new(tasks),
            }),
        }
    }

    /// Keeps every active group, the Welcome topic and `also` subscribed from now on; once.
    pub fn go_live(&self, also: Vec<Topic>) {
        let mut tasks = self.inner.tasks.lock();
        if tasks.is_live || tasks.is_closed {
            return;
        }
        tasks.is_live = true;
        let context = self.inner.context.clone();
        let mut wanted = vec![context.welcome_topic];
        wanted.extend(also);
        let scope = self.inner.scope.clone();
        scope.send_modify(|scope| {
            scope.topics.extend(wanted.iter().copied());
            scope.all_groups = true;
        });
        let task = context
            .runtime
            .clone()
            .spawn("interests", groups::run(context, wanted, scope));
        tasks.running.push(task);
    }

    /// Follows how far everything that [`Engine::go_live`] keeps subscribed has caught up.
    pub fn catch_up(&self) -> StatusWatch {
        StatusWatch::start(
            self.inner.context.clone(),
            self.inner.subscriptions.clone(),
            self.inner.scope.subscribe(),
        )
    }

    /// Runs a task of a processor for as long as the engine runs.
    pub fn attend(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.inner.tasks.lock();
        if !tasks.is_closed {
            tasks
                .running
                .push(self.inner.context.runtime.spawn(name, task));
        }
    }

    /// Answers the parts of this engine.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Answers the sender of this engine.
    pub fn sender(&self) -> &Sender {
        &self.inner.sender
    }

    /// Answers the live subscription of this engine.
    pub fn subscriptions(&self) -> &Subscriptions {
        &self.inner.subscriptions
    }

    /// Answers the stored messages of this engine's database.
    pub fn messages(&self) -> Messages {
        self.inner.messages.clone()
    }

    /// Processes topics through the heads that the backend has now.
    ///
    /// # Errors
    /// A typed incomplete result that names every unfinished obligation.
    pub async fn sync(&self, request: SyncRequest) -> Result<SyncReport, SyncError> {
        sync::sync(&self.inner.context, request).await
    }

    /// Reads a page of groups in id order after `after`.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn groups(
        &self,
        after: Option<GroupId>,
    ) -> Result<(Vec<(GroupId, xmtp_proto::storage::v1::GroupRecord)>, bool), StorageError> {
        self.inner
            .context
            .database
            .read_queued(move |snapshot| {
                welcome::store::groups(snapshot, after.as_ref(), MAX_LOCAL_READ_ROWS)
            })
            .await
    }

    /// Reads a group's record.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn group(
        &self,
        group: GroupId,
    ) -> Result<Option<xmtp_proto::storage::v1::GroupRecord>, StorageError> {
        self.inner
            .context
            .database
            .read_queued(move |snapshot| welcome::store::group(snapshot, &group))
            .await
    }

    /// Reads why an envelope was rejected, as a stable code; `None` when it was not.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn rejection(
        &self,
        topic: Topic,
        sequence: SequenceId,
    ) -> Result<Option<String>, StorageError> {
        let read =
            self.inner.context.database.read_queued(move |snapshot| {
                processing::store::rejection(snapshot, &topic, sequence)
            });
        Ok(read.await?.map(|rejection| rejection.reason))
    }

    /// Describes the composition in one line, for reports.
    pub fn stack(&self) -> String {
        let context = &self.inner.context;
        let capability = context.database.capability();
        let encryption = match capability.encryption {
            crate::storage::Encryption::None => "plain",
            crate::storage::Encryption::Values => "values encrypted",
            crate::storage::Encryption::Whole => "encrypted",
        };
        format!(
            "{}({encryption}) / {} / {:?}",
            capability.name,
            context.transport.capability().name,
            context.processors.group
        )
    }

    /// Ends every task and closes the database; idempotent.
    ///
    /// # Errors
    /// When the storage engine fails to close.
    pub async fn close(&self) -> Result<(), StorageError> {
        let (subscription, running) = {
            let mut tasks = self.inner.tasks.lock();
            tasks.is_closed = true;
            (
                tasks.subscription.take(),
                std::mem::take(&mut tasks.running),
            )
        };
        if let Some(subscription) = subscription {
            subscription.close().await;
        }
        for task in running {
            task.stop().await;
        }
        self.inner.context.database.close()
    }
}

//! What a new connection has to prove before it serves anybody.

use std::sync::Arc;

use deadpool_postgres::{Hook, HookError};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::SetupError;
use super::endpoint::{Identity, identity};
use super::fault::Trouble;
use super::open::check_history;

/// Refuses a replica: it may not show yet what was acknowledged. A connection that was made just
/// before a promotion is refused too, and the next one is not.
pub(super) fn primary() -> Hook {
    Hook::async_fn(|client, _| {
        Box::pin(async move {
            match identity(client).await.map_err(refused)?.is_replica {
                true => Err(HookError::message("a replica may lag")),
                false => Ok(()),
            }
        })
    })
}

/// Refuses a database whose history was cut, which would give ids twice, and a replica, which may
/// be promoted to such a history while nobody looks.
pub(super) fn whole_history() -> Hook {
    Hook::async_fn(|client, _| {
        Box::pin(async move {
            let here = identity(client).await.map_err(refused)?;
            if here.is_replica {
                return Err(HookError::message("a replica takes no publishes"));
            }
            match check_history(client, &here).await {
                Ok(()) => Ok(()),
                Err(SetupError::Database(error)) => Err(HookError::Backend(error)),
                Err(error) => {
                    tracing::error!(%error, "nothing can be published");
                    Err(HookError::message("the history was cut"))
                }
            }
        })
    })
}

/// Refuses what is neither the primary's database nor a replica of it.
pub(super) fn same_database(primary: &Arc<Mutex<Identity>>) -> Hook {
    let primary = primary.clone();
    Hook::async_fn(move |client, _| {
        let primary = primary.clone();
        Box::pin(async move {
            let here = identity(client).await.map_err(refused)?;
            if here.shares_history(&primary.lock()) {
                return Ok(());
            }
            tracing::error!(error = %SetupError::OtherDatabase, "a replica is not read");
            Err(HookError::message("another database"))
        })
    })
}

/// Refuses every server but one, and counts the connections that led elsewhere.
pub(super) fn same_server(expected: &Identity, strays: &Arc<watch::Sender<u64>>) -> Hook {
    let (expected, strays) = (Arc::new(expected.clone()), strays.clone());
    Hook::async_fn(move |client, _| {
        let (expected, strays) = (expected.clone(), strays.clone());
        Box::pin(async move {
            if identity(client).await.map_err(refused)? == *expected {
                return Ok(());
            }
            tracing::warn!("a connection leads to another server than the one that streams follow");
            strays.send_modify(|strays| *strays += 1);
            Err(HookError::message("another server"))
        })
    })
}

fn refused(trouble: Trouble) -> HookError {
    match trouble {
        Trouble::Database(error) => HookError::Backend(error),
        Trouble::Silent => HookError::message("no answer in time"),
    }
}

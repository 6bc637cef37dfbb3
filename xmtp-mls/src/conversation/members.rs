//! What has to be known of an inbox before it can be added: its verified state, and a key package
//! of each installation.

use std::collections::BTreeMap;

use bytes::Bytes;
use xmtp_core::engine::Context;
use xmtp_proto::backend::v1::QueryNewestRequest;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::limits::BACKEND_DEFAULT_MAX_NEWEST_FULL_TOPICS;
use xmtp_proto::storage::v1::MemberAddition;
use xmtp_proto::{InboxId, InstallationId, Topic};

use crate::client::{ClientError, inbox};
use crate::key_package::check;

/// Fetches everything for adding inboxes. One bad installation fails alone: it is listed.
///
/// # Errors
/// When an inbox is unknown, none of an inbox's installations can be added, or fetching fails.
pub(super) async fn additions(
    context: &Context,
    inboxes: &[InboxId],
) -> Result<Vec<MemberAddition>, ClientError> {
    let mut additions = Vec::with_capacity(inboxes.len());
    for inbox in inboxes {
        additions.push(addition(context, *inbox).await?);
    }
    Ok(additions)
}

async fn addition(context: &Context, inbox: InboxId) -> Result<MemberAddition, ClientError> {
    let found = inbox::newest_state(context, inbox).await?;
    let (sequence, state) = found.ok_or(ClientError::UnknownInbox)?;
    let installations = state.installations();
    let packages = key_packages(context, &installations).await?;
    let now = context.runtime.now_ns();
    let mut addition = MemberAddition {
        inbox_id: inbox.to_hex(),
        sequence_id: sequence.get(),
        ..Default::default()
    };
    for id in &installations {
        let usable = packages
            .get(id)
            .filter(|package| check(package, id, &inbox, now).is_ok());
        match usable {
            Some(package) => addition.key_packages.push(package.clone()),
            None => addition
                .failed_installations
                .push(id.as_bytes().to_vec().into()),
        }
    }
    if addition.key_packages.is_empty() {
        return Err(ClientError::NotAddable {
            count: installations.len(),
        });
    }
    Ok(addition)
}

/// Fetches the newest key package of installations.
async fn key_packages(
    context: &Context,
    installations: &[InstallationId],
) -> Result<BTreeMap<InstallationId, Bytes>, ClientError> {
    let mut packages = BTreeMap::new();
    for chunk in installations.chunks(BACKEND_DEFAULT_MAX_NEWEST_FULL_TOPICS as usize) {
        let topics = chunk.iter().map(|id| Topic::key_package(id).to_proto());
        let request = QueryNewestRequest {
            topics: topics.collect(),
            include_full_envelope: true,
        };
        let response = context.transport.query_newest(request).await?;
        for result in response.results {
            let topic = result
                .topic
                .and_then(|topic| Topic::parse(&topic.topic).ok());
            let payload = result.envelope.and_then(|envelope| envelope.payload);
            let (Some(topic), Some(Payload::KeyPackage(package))) = (topic, payload) else {
                continue;
            };
            if let Ok(id) = InstallationId::try_from(topic.identifier()) {
                packages.insert(id, package.key_package_tls_serialized);
            }
        }
    }
    Ok(packages)
}

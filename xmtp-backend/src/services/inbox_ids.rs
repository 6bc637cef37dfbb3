//! GetInboxIds.

use tonic::Status;
use xmtp_identity::{Identifier, IdentifierKind};
use xmtp_proto::backend::v1::get_inbox_ids_request::Request;
use xmtp_proto::backend::v1::get_inbox_ids_response::Response;
use xmtp_proto::backend::v1::{GetInboxIdsRequest, GetInboxIdsResponse};

use super::Services;
use super::status::{at_most, invalid, of_read, outgoing};
use crate::hooks::Call;
use crate::store::IdentifierKey;

impl Services {
    /// Looks up the inbox of each identifier.
    ///
    /// - Answers in order, repeats included, with the identifiers as they were given.
    /// - An identifier without an inbox has none in its answer.
    pub async fn inbox_ids(
        &self,
        request: GetInboxIdsRequest,
    ) -> Result<GetInboxIdsResponse, Status> {
        self.begin(Call::GetInboxIds).await?;
        let most = self.inner.limits.max_lookup_identifiers;
        at_most(
            request.requests.len(),
            most,
            "the lookup has too many identifiers",
        )?;
        let keys = request
            .requests
            .iter()
            .map(key)
            .collect::<Result<Vec<_>, _>>()?;
        let found = self.inner.store.inbox_ids(keys).await.map_err(of_read)?;
        let pairs = request.requests.into_iter().zip(found);
        let responses = pairs.map(|(request, inbox)| Response {
            identifier: request.identifier,
            identifier_kind: request.identifier_kind,
            inbox_id: inbox.map(|inbox| inbox.to_hex()),
        });
        outgoing(
            GetInboxIdsResponse {
                responses: responses.collect(),
            },
            &self.inner.limits,
        )
    }
}

/// Brings an identifier into the form under which it is stored.
fn key(request: &Request) -> Result<IdentifierKey, Status> {
    let kind = IdentifierKind::from_proto(request.identifier_kind);
    let kind = kind.map_err(|_| invalid("the kind of an identifier is unknown"))?;
    let text = request.identifier.to_ascii_lowercase();
    // Text that is no identifier belongs to no inbox; looking it up says so.
    let text = Identifier::from_text(kind, &text, None).map_or(text, |known| known.text());
    Ok(IdentifierKey {
        kind: kind.to_proto(),
        text,
    })
}

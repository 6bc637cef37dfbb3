//! VerifySmartContractWalletSignatures.

use tonic::Status;
use xmtp_identity::AccountId;
use xmtp_proto::backend::v1::verify_smart_contract_wallet_signatures_request::Signature;
use xmtp_proto::backend::v1::verify_smart_contract_wallet_signatures_response::Response;
use xmtp_proto::backend::v1::{
    VerifySmartContractWalletSignaturesRequest, VerifySmartContractWalletSignaturesResponse,
};

use super::Services;
use super::status::{at_most, invalid, outgoing, unavailable};
use crate::chain::{Judgement, Question};
use crate::hooks::Call;

/// What a developer is told about a signature that does not hold.
const NOT_ACCEPTED: &str = "the wallet does not accept the signature";

impl Services {
    /// Asks wallets whether they accept signatures.
    ///
    /// - Answers in order. A signature that does not hold is an answer, not a failure.
    /// - Without a block the newest one is asked; the answer names the block.
    /// - Fails as a whole with UNAVAILABLE if a chain has no node or its node gives no verdict.
    pub async fn verify_smart_contract_wallet_signatures(
        &self,
        request: VerifySmartContractWalletSignaturesRequest,
    ) -> Result<VerifySmartContractWalletSignaturesResponse, Status> {
        self.begin(Call::VerifySmartContractWalletSignatures)
            .await?;
        let most = self.inner.limits.max_scw_signatures;
        let problem = "the request has too many signatures";
        at_most(request.signatures.len(), most, problem)?;
        let questions = request.signatures.into_iter().map(question);
        let questions = questions.collect::<Result<Vec<_>, _>>()?;
        let judged = self.inner.chains.judge(&questions).await;
        let judged = judged.map_err(|_| unavailable())?;
        let responses = judged.into_iter().map(response).collect();
        outgoing(
            VerifySmartContractWalletSignaturesResponse { responses },
            &self.inner.limits,
        )
    }
}

fn question(signature: Signature) -> Result<Question, Status> {
    let hash = <[u8; 32]>::try_from(&signature.hash[..]);
    Ok(Question {
        account: account(&signature.account_id)?,
        block: signature.block_number,
        hash: hash.map_err(|_| invalid("a hash does not have 32 bytes"))?,
        signature: signature.signature,
    })
}

/// Reads an account, in whichever case its address is written.
fn account(text: &str) -> Result<AccountId, Status> {
    let lowercase = match text.rsplit_once(":0x") {
        Some((chain, digits)) => format!("{chain}:0x{}", digits.to_ascii_lowercase()),
        None => text.to_owned(),
    };
    let problem = "an account is not eip155:<chain>:<address>";
    AccountId::parse(&lowercase).map_err(|_| invalid(problem))
}

fn response(judgement: Judgement) -> Response {
    Response {
        is_valid: judgement.is_valid,
        block_number: Some(judgement.block),
        error: (!judgement.is_valid).then(|| NOT_ACCEPTED.to_owned()),
    }
}

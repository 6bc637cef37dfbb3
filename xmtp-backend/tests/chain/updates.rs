//! Identity updates that a contract wallet signs.

use alloy_primitives::Address;
use tonic::Code;
use xmtp_identity::{Identifier, UpdateBuilder};
use xmtp_proto::backend::v1::ClientEnvelope;
use xmtp_proto::backend::v1::publish_error::Reason;
use xmtp_proto::id::InboxId;
use xmtp_proto::identity::{Signature, SmartContractWalletSignature, signature};

use crate::common::{Peer, assert_refused, identity, identity_topic};
use crate::front::{Front, Reply};
use crate::node::Anvil;
use crate::{Owner, account, config};

/// How much older than the newest block the block of a signature may be, in seconds.
const AGE: u64 = 1800;

const TIME_NS: u64 = 1_700_000_000_000_000_000;

/// Makes the update by which a contract wallet creates an inbox.
fn create(wallet: Address, owner: &Owner, block: u64) -> (InboxId, ClientEnvelope) {
    let wallet_identifier = Identifier::ethereum_bytes(wallet.into());
    let builder = UpdateBuilder::create_inbox(wallet_identifier, 1);
    let inbox = builder.inbox_id();
    let unsigned = builder.build(TIME_NS).expect("an update");
    let signed = SmartContractWalletSignature {
        account_id: account(wallet),
        block_number: block,
        signature: owner.sign(unsigned.signature_text()).into(),
    };
    let signature = Signature {
        signature: Some(signature::Signature::Erc6492(signed)),
    };
    let update = unsigned.with_signature(signature).expect("the wallet's");
    (inbox, identity(update.finish().expect("signed")))
}

#[tokio::test]
async fn an_update_is_stored_if_its_wallet_accepts() {
    let Some(anvil) = Anvil::start().await else {
        return;
    };
    let front = Front::before(&anvil.url).await;
    let peer = Peer::start(config(&front.url)).await;
    let (owner, other) = (Owner::new(1), Owner::new(2));
    let wallet = anvil.owned_wallet(owner.address(), false).await;
    let block = anvil.head().await;

    let (inbox, forged) = create(wallet, &other, block);
    let status = peer.publish(vec![forged]).await.unwrap_err();
    assert_refused(&status, Reason::InvalidSignature, Some(0));
    let (_, good) = create(wallet, &owner, block);
    let stored = peer.publish_one(good.clone()).await;
    assert_eq!(peer.read(&identity_topic(inbox)).await.len(), 1);

    // What is stored is not asked about again.
    front.obey(|_| Reply::Close);
    let asked = front.total();
    assert_eq!(peer.publish_one(good).await, stored);
    assert_eq!(front.total(), asked);
}

#[tokio::test]
async fn an_update_waits_for_a_chain_that_gives_no_verdict() {
    let Some(anvil) = Anvil::start().await else {
        return;
    };
    let front = Front::before(&anvil.url).await;
    let peer = Peer::start(config(&front.url)).await;
    let owner = Owner::new(1);
    let wallet = anvil.owned_wallet(owner.address(), false).await;
    let (inbox, update) = create(wallet, &owner, anvil.head().await);
    for failing in ["eth_chainId", "eth_getBlockByNumber", "eth_call"] {
        front.obey(move |method| match method == failing {
            true => Reply::Status(503),
            false => Reply::Forward,
        });
        let status = peer.publish(vec![update.clone()]).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{failing}");
        assert!(front.count(failing) > 0);
    }
    assert_eq!(peer.read(&identity_topic(inbox)).await.len(), 0);
    front.obey(|_| Reply::Forward);
    peer.publish_one(update).await;
}

#[tokio::test]
async fn the_block_of_an_update_is_recent_and_not_beyond_the_newest() {
    let Some(anvil) = Anvil::start().await else {
        return;
    };
    let front = Front::before(&anvil.url).await;
    let peer = Peer::start(config(&front.url)).await;
    let owner = Owner::new(1);
    let mut wallets = Vec::new();
    for _ in 0..3 {
        wallets.push(anvil.owned_wallet(owner.address(), false).await);
    }
    let block = anvil.head().await;

    let (_, beyond) = create(wallets[0], &owner, block + 1);
    let status = peer.publish(vec![beyond]).await.unwrap_err();
    assert_refused(&status, Reason::InvalidSignature, Some(0));

    anvil.mine_after(AGE).await;
    let (_, as_old_as_may_be) = create(wallets[1], &owner, block);
    peer.publish_one(as_old_as_may_be).await;

    anvil.mine_after(1).await;
    let calls = front.count("eth_call");
    let (_, too_old) = create(wallets[2], &owner, block);
    let status = peer.publish(vec![too_old]).await.unwrap_err();
    assert_refused(&status, Reason::InvalidSignature, Some(0));
    assert_eq!(front.count("eth_call"), calls, "the wallet is not asked");
}

#[tokio::test]
async fn a_publish_takes_no_longer_than_the_operator_says() {
    let front = Front::alone(|_| Reply::Hang).await;
    let mut config = config(&front.url);
    config.database_limits.max_statement_timeout_ms = 1;
    config.publishing.max_barrier_wait_ms = 1;
    config.publishing.max_publish_duration_ms = 50;
    let peer = Peer::start(config).await;
    let (_, envelope) = create(Address::repeat_byte(5), &Owner::new(1), 1);
    let status = peer.publish(vec![envelope]).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    assert!(front.total() > 0, "it was under way");
}

#[tokio::test]
async fn no_chain_is_asked_about_an_update_that_does_not_apply() {
    let front = Front::alone(|_| Reply::Close).await;
    let peer = Peer::start(config(&front.url)).await;
    let owner = Owner::new(1);
    let wallet = Address::repeat_byte(5);
    let (_, envelope) = create(wallet, &owner, 1);
    let Some(xmtp_proto::backend::v1::client_envelope::Payload::IdentityUpdate(mut update)) =
        envelope.payload
    else {
        panic!("not an update");
    };
    update.inbox_id = InboxId::from_bytes([1; 32]).to_hex();
    let status = peer.publish(vec![identity(update)]).await.unwrap_err();
    assert_refused(&status, Reason::InvalidIdentityUpdate, Some(0));
    assert_eq!(front.total(), 0);
}

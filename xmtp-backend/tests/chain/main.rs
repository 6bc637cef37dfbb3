//! What wallets on a real chain say about signatures, and what is answered when a chain says nothing.

#[path = "../common/mod.rs"]
mod common;
mod front;
mod node;
mod updates;

use alloy_primitives::{Address, B256};
use alloy_sol_types::SolValue;
use serde_json::json;
use tonic::{Code, Status};
use xmtp_backend::Config;
use xmtp_backend::config::Secret;
use xmtp_identity::{LocalWallet, personal_message_hash};
use xmtp_proto::backend::v1::VerifySmartContractWalletSignaturesRequest;
use xmtp_proto::backend::v1::identity_service_client::IdentityServiceClient;
use xmtp_proto::backend::v1::verify_smart_contract_wallet_signatures_request::Signature;
use xmtp_proto::backend::v1::verify_smart_contract_wallet_signatures_response::Response;
use xmtp_proto::identity::signature;

use common::{IDENTIFIER, Peer};
use front::{Front, Reply};
use node::{Anvil, CHAIN, call};

/// What the wallets are asked about.
const TEXT: &str = "a text that an owner signs";

/// What ends a wrapped signature.
const WRAPPED: [u8; 32] =
    alloy_primitives::hex!("6492649264926492649264926492649264926492649264926492649264926492");

pub(crate) fn config(url: &str) -> Config {
    let mut config = Config::ephemeral(IDENTIFIER);
    let chain = format!("eip155:{CHAIN}");
    config.chains.insert(chain, Secret::new(url));
    config
}

/// The key of a person, outside of any contract.
pub(crate) struct Owner(LocalWallet);

impl Owner {
    pub(crate) fn new(number: u8) -> Self {
        Self(LocalWallet::from_secret(&[number; 32]).expect("a key"))
    }

    pub(crate) fn address(&self) -> Address {
        self.0.identifier().text().parse().expect("an address")
    }

    /// Signs a text; the hash of it is what a wallet is asked about.
    pub(crate) fn sign(&self, text: &str) -> Vec<u8> {
        let signed = self.0.sign_text(text).expect("a signature").signature;
        match signed {
            Some(signature::Signature::Erc191(signed)) => signed.bytes.to_vec(),
            other => panic!("another signature: {other:?}"),
        }
    }
}

pub(crate) fn account(address: Address) -> String {
    format!("eip155:{CHAIN}:{}", address.to_string().to_lowercase())
}

/// Wraps a signature with what deploys or prepares its wallet.
pub(crate) fn wrap(factory: Address, preparation: Vec<u8>, signature: Vec<u8>) -> Vec<u8> {
    let preparation = alloy_primitives::Bytes::from(preparation);
    let signature = alloy_primitives::Bytes::from(signature);
    let wrapping = (factory, preparation, signature).abi_encode_params();
    [&wrapping[..], &WRAPPED].concat()
}

fn asked(address: Address, signature: Vec<u8>) -> Signature {
    Signature {
        account_id: account(address),
        block_number: None,
        hash: personal_message_hash(TEXT).to_vec().into(),
        signature: signature.into(),
    }
}

fn asked_at(block: u64, address: Address, signature: Vec<u8>) -> Signature {
    Signature {
        block_number: Some(block),
        ..asked(address, signature)
    }
}

async fn verify(peer: &Peer, signatures: Vec<Signature>) -> Result<Vec<Response>, Status> {
    let mut client = IdentityServiceClient::new(peer.channel.clone());
    let request = VerifySmartContractWalletSignaturesRequest { signatures };
    let answer = client.verify_smart_contract_wallet_signatures(request);
    answer.await.map(|answer| answer.into_inner().responses)
}

/// Asks and keeps the verdicts.
async fn verdicts(peer: &Peer, signatures: Vec<Signature>) -> Vec<bool> {
    let answers = verify(peer, signatures).await.expect("verdicts");
    answers.iter().map(|answer| answer.is_valid).collect()
}

/// Asks one question that gets no verdict.
async fn fault(peer: &Peer, signature: Signature) -> Status {
    let status = verify(peer, vec![signature]).await.expect_err("no verdict");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(
        status.message(),
        "the server is not available, try again later"
    );
    status
}

#[tokio::test]
async fn a_deployed_wallet_accepts_what_its_owner_signed() {
    let Some(anvil) = Anvil::start().await else {
        return;
    };
    let peer = Peer::start(config(&anvil.url)).await;
    let (owner, other) = (Owner::new(1), Owner::new(2));
    let wallet = anvil.owned_wallet(owner.address(), false).await;
    let mut another_hash = asked(wallet, owner.sign(TEXT));
    another_hash.hash = vec![7; 32].into();
    let questions = vec![
        asked(wallet, owner.sign(TEXT)),
        asked(wallet, other.sign(TEXT)),
        asked(wallet, owner.sign("another text")),
        asked(wallet, Vec::new()),
        another_hash,
        asked(wallet, owner.sign(TEXT)),
    ];
    let answers = verify(&peer, questions).await.unwrap();
    let valid: Vec<_> = answers.iter().map(|answer| answer.is_valid).collect();
    assert_eq!(valid, [true, false, false, false, false, true]);
    let head = anvil.head().await;
    assert!(
        answers
            .iter()
            .all(|answer| answer.block_number == Some(head))
    );
    let told: Vec<_> = answers
        .iter()
        .map(|answer| answer.error.is_some())
        .collect();
    assert_eq!(told, [false, true, true, true, true, false]);
}

#[tokio::test]
async fn an_account_without_code_signs_with_its_own_key() {
    let Some(anvil) = Anvil::start().await else {
        return;
    };
    let peer = Peer::start(config(&anvil.url)).await;
    let (owner, other) = (Owner::new(1), Owner::new(2));
    let mut twin = owner.sign(TEXT);
    let order = alloy_primitives::U256::from_be_bytes(alloy_primitives::hex!(
        "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"
    ));
    let s = alloy_primitives::U256::from_be_slice(&twin[32..64]);
    twin[32..64].copy_from_slice(&(order - s).to_be_bytes::<32>());
    twin[64] ^= 27 ^ 28;
    let mut short = owner.sign(TEXT);
    short.pop();
    // It has no code and answers with what it was called with: here, with what a wallet answers.
    let echo = Address::with_last_byte(4);
    let mut echoed = asked(echo, wrap(owner.address(), Vec::new(), Vec::new()));
    echoed.hash = vec![0; 32].into();
    let questions = vec![
        asked(owner.address(), owner.sign(TEXT)),
        asked(owner.address(), other.sign(TEXT)),
        asked(owner.address(), twin),
        asked(owner.address(), short),
        asked(Address::ZERO, vec![0; 65]),
        echoed,
    ];
    assert_eq!(
        verdicts(&peer, questions).await,
        [true, false, false, false, false, false]
    );
}

#[tokio::test]
async fn a_wallet_that_goes_wrong_is_a_signature_that_does_not_hold() {
    let Some(anvil) = Anvil::start().await else {
        return;
    };
    let peer = Peer::start(config(&anvil.url)).await;
    let mut questions = Vec::new();
    for way in 0..8 {
        let wallet = anvil.odd_wallet(way).await;
        questions.push(asked(wallet, vec![1; 65]));
        questions.push(asked(wallet, wrap(wallet, Vec::new(), vec![1; 65])));
    }
    assert_eq!(verdicts(&peer, questions).await, [false; 16]);
}

#[tokio::test]
async fn a_wallet_that_is_not_deployed_yet_accepts_through_its_factory() {
    let Some(anvil) = Anvil::start().await else {
        return;
    };
    let peer = Peer::start(config(&anvil.url)).await;
    let (owner, other, salt) = (Owner::new(1), Owner::new(2), B256::repeat_byte(9));
    let factory = anvil.factory().await;
    let wallet = anvil.address_of(factory, owner.address(), salt).await;
    let deploys = || call("deploy(address,bytes32)", (owner.address(), salt));
    let mut cut = wrap(factory, deploys(), owner.sign(TEXT));
    cut.drain(..32);
    let questions = vec![
        asked(wallet, wrap(factory, deploys(), owner.sign(TEXT))),
        asked(wallet, wrap(factory, deploys(), other.sign(TEXT))),
        asked(wallet, owner.sign(TEXT)),
        asked(wallet, wrap(owner.address(), deploys(), owner.sign(TEXT))),
        asked(wallet, wrap(factory, b"none".to_vec(), owner.sign(TEXT))),
        asked(wallet, cut),
        asked(wallet, WRAPPED.to_vec()),
        asked(wallet, vec![1; 40_000]),
    ];
    let expected = [true, false, false, false, false, false, false, false];
    assert_eq!(verdicts(&peer, questions).await, expected);
    assert!(!anvil.has_code(wallet).await, "asking deploys nothing");
}

#[tokio::test]
async fn a_wallet_that_stands_may_be_prepared_by_a_wrapped_signature() {
    let Some(anvil) = Anvil::start().await else {
        return;
    };
    let peer = Peer::start(config(&anvil.url)).await;
    let owner = Owner::new(1);
    let (ready, waiting) = (
        anvil.owned_wallet(owner.address(), false).await,
        anvil.owned_wallet(owner.address(), true).await,
    );
    let prepare = || call("prepare()", ());
    let questions = vec![
        // A factory that fails does not matter to a wallet that accepts.
        asked(ready, wrap(ready, b"none".to_vec(), owner.sign(TEXT))),
        asked(waiting, owner.sign(TEXT)),
        asked(waiting, wrap(waiting, prepare(), owner.sign(TEXT))),
        asked(waiting, wrap(waiting, b"none".to_vec(), owner.sign(TEXT))),
    ];
    assert_eq!(verdicts(&peer, questions).await, [true, false, true, false]);
}

#[tokio::test]
async fn a_signature_is_judged_at_its_block() {
    let Some(anvil) = Anvil::start().await else {
        return;
    };
    let peer = Peer::start(config(&anvil.url)).await;
    let (first, second) = (Owner::new(1), Owner::new(2));
    let before = anvil.head().await;
    let wallet = anvil.owned_wallet(first.address(), false).await;
    let held = anvil.head().await;
    anvil.change_owner(wallet, second.address()).await;
    let questions = vec![
        asked_at(before, wallet, first.sign(TEXT)),
        asked_at(held, wallet, first.sign(TEXT)),
        asked_at(held, wallet, second.sign(TEXT)),
        asked(wallet, first.sign(TEXT)),
        asked(wallet, second.sign(TEXT)),
    ];
    let answers = verify(&peer, questions).await.unwrap();
    let valid: Vec<_> = answers.iter().map(|answer| answer.is_valid).collect();
    assert_eq!(valid, [false, true, false, false, true]);
    let blocks: Vec<_> = answers
        .iter()
        .filter_map(|answer| answer.block_number)
        .collect();
    assert_eq!(blocks, [before, held, held, held + 1, held + 1]);
    fault(&peer, asked_at(held + 2, wallet, second.sign(TEXT))).await;
}

#[tokio::test]
async fn a_malformed_question_is_refused_before_any_chain_is_asked() {
    let front = Front::alone(|_| Reply::Close).await;
    let mut config = config(&front.url);
    config.limits.max_scw_signatures = 3;
    let peer = Peer::start(config).await;
    let good = asked(Address::repeat_byte(1), vec![1; 65]);
    let account_id = |text: &str| Signature {
        account_id: text.to_owned(),
        ..good.clone()
    };
    let hash = |length: usize| Signature {
        hash: vec![1; length].into(),
        ..good.clone()
    };
    let address = "0x0101010101010101010101010101010101010101";
    let mut malformed: Vec<_> = [
        "",
        address,
        "eip155",
        "eip155:1",
        "eip155:1:",
        "solana:1:abc",
    ]
    .map(account_id)
    .to_vec();
    let near = [
        "eip155:01:",
        "eip155:-1:",
        "eip155:x:",
        "EIP155:1:",
        "eip155:1:x:",
    ];
    malformed.extend(near.map(|chain| account_id(&format!("{chain}{address}"))));
    let texts = [
        format!("{address}0"),
        address.replace("0x", "0X"),
        address.replace("01", "0g"),
        address.replace("0x", ""),
    ];
    malformed.extend(texts.map(|text| account_id(&format!("eip155:1:{text}"))));
    malformed.extend([0, 31, 33].map(hash));
    for bad in malformed {
        let status = verify(&peer, vec![good.clone(), bad.clone()])
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{bad:?}");
    }
    let status = verify(&peer, vec![good.clone(); 4]).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(verify(&peer, Vec::new()).await.unwrap(), []);
    assert_eq!(front.total(), 0);
    assert_eq!(
        verify(&peer, vec![good; 3]).await.unwrap_err().code(),
        Code::Unavailable
    );
}

#[tokio::test]
async fn an_address_may_be_written_in_either_case() {
    let Some(anvil) = Anvil::start().await else {
        return;
    };
    let peer = Peer::start(config(&anvil.url)).await;
    let owner = Owner::new(1);
    let wallet = anvil.owned_wallet(owner.address(), false).await;
    let mut question = asked(wallet, owner.sign(TEXT));
    question.account_id = format!("eip155:{CHAIN}:{wallet}");
    assert_ne!(question.account_id, account(wallet));
    assert_eq!(verdicts(&peer, vec![question]).await, [true]);
}

#[tokio::test]
async fn a_chain_that_gives_no_verdict_fails_the_whole_request() {
    let Some(anvil) = Anvil::start().await else {
        return;
    };
    let front = Front::before(&anvil.url).await;
    let peer = Peer::start(config(&front.url)).await;
    let owner = Owner::new(1);
    let wallet = anvil.owned_wallet(owner.address(), false).await;
    let good = asked(wallet, owner.sign(TEXT));
    assert_eq!(verdicts(&peer, vec![good.clone()]).await, [true]);

    // One of many is on a chain that has no node.
    let mut elsewhere = good.clone();
    elsewhere.account_id = elsewhere.account_id.replace(&CHAIN.to_string(), "1");
    let before = front.total();
    let status = verify(&peer, vec![good.clone(), elsewhere])
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(front.total(), before, "nothing is asked in vain");

    let word = |last: &str| json!(format!("0x{last:0>64}"));
    let refused = json!({ "error": { "code": -32_000, "message": front.url } }).to_string();
    let replies = [
        Reply::Close,
        Reply::Status(500),
        Reply::Status(301),
        Reply::Status(429),
        Reply::Text(String::new()),
        Reply::Text("no JSON".to_owned()),
        Reply::Text("{}".to_owned()),
        Reply::Text(refused),
        Reply::Endless,
        Reply::result(json!(null)),
        Reply::result(json!("0x")),
        Reply::result(json!("0x1")),
        Reply::result(json!(true)),
        Reply::result(word("2")),
        Reply::result(word("100")),
        Reply::Hang,
    ];
    for reply in replies {
        let odd = reply.clone();
        front.obey(move |method| match method {
            "eth_call" => odd.clone(),
            _ => Reply::Forward,
        });
        let asked = front.count("eth_call");
        let status = fault(&peer, good.clone()).await;
        assert!(
            !format!("{status:?}").contains(&front.url),
            "an address is a secret"
        );
        assert!(front.count("eth_call") > asked, "{reply:?}");
    }

    // As soon as the chain answers again, so does the server.
    front.obey(|_| Reply::Forward);
    assert_eq!(verdicts(&peer, vec![good]).await, [true]);
}

#[tokio::test]
async fn a_node_that_is_down_is_no_invalid_signature() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let peer = Peer::start(config(&url)).await;
    fault(&peer, asked(Address::repeat_byte(1), vec![1; 65])).await;
    fault(&peer, asked_at(1, Address::repeat_byte(1), vec![1; 65])).await;
}

#[tokio::test]
async fn a_node_of_another_chain_is_not_believed() {
    let Some(anvil) = Anvil::start().await else {
        return;
    };
    let mut config = config(&anvil.url);
    config
        .chains
        .insert("eip155:1".to_owned(), Secret::new(&anvil.url));
    let peer = Peer::start(config).await;
    let owner = Owner::new(1);
    let wallet = anvil.owned_wallet(owner.address(), false).await;
    let good = asked(wallet, owner.sign(TEXT));
    assert_eq!(verdicts(&peer, vec![good.clone()]).await, [true]);
    let mut elsewhere = good;
    elsewhere.account_id = elsewhere.account_id.replace(&CHAIN.to_string(), "1");
    fault(&peer, elsewhere).await;
}

#[tokio::test]
async fn as_many_verdicts_are_remembered_as_the_operator_says() {
    let valid = || Reply::result(json!(format!("0x{:064}", 1)));
    let front = Front::alone(move |_| valid()).await;
    let mut config = config(&front.url);
    config.validation.max_scw_cache_entries = 2;
    let peer = Peer::start(config).await;
    for (block, calls) in [(1, 1), (2, 2), (1, 2), (3, 3), (1, 3), (2, 4)] {
        let question = asked_at(block, Address::repeat_byte(1), vec![1; 65]);
        assert_eq!(verdicts(&peer, vec![question]).await, [true]);
        assert_eq!(front.count("eth_call"), calls, "block {block}");
    }
}

#[tokio::test]
async fn a_chain_is_asked_few_questions_at_a_time() {
    /// The bounds of the server.
    const OF_ONE_REQUEST: usize = 8;
    const OF_ALL_REQUESTS: usize = 32;
    for (requests, bound) in [(1, OF_ONE_REQUEST), (6, OF_ALL_REQUESTS)] {
        let front = Front::alone(|_| Reply::Held).await;
        let peer = Peer::start(config(&front.url)).await;
        let asked = (0..requests).map(|request| {
            let signature =
                |number: u8| asked_at(1, Address::repeat_byte(1), vec![request, number]);
            verify(&peer, (0..40).map(signature).collect())
        });
        let released = async {
            front.holds(bound).await;
            front.obey(|_| Reply::result(json!(format!("0x{:064}", 1))));
            front.release();
        };
        let asked = futures_util::future::join_all(asked);
        let (answers, ()) = tokio::join!(asked, released);
        for answer in answers {
            assert!(
                answer
                    .expect("verdicts")
                    .iter()
                    .all(|answer| answer.is_valid)
            );
        }
        assert_eq!(front.held_at_most(), bound);
    }
}

#[tokio::test]
async fn a_chain_that_is_silent_holds_up_no_other() {
    /// The bound of the server for one node.
    const OF_ONE_NODE: usize = 32;
    let dead = Front::alone(|_| Reply::Held).await;
    let lively = Front::of_chain(1, |_| Reply::result(json!(format!("0x{:064}", 1)))).await;
    let mut config = config(&dead.url);
    let named = ("eip155:1".to_owned(), Secret::new(&lively.url));
    config.chains.extend([named]);
    let peer = Peer::start(config).await;
    let question = |number: u8| asked_at(1, Address::repeat_byte(1), vec![number; 65]);
    let waiting = (0..6).map(|request| {
        let questions = (0..8).map(|number| question(8 * request + number));
        verify(&peer, questions.collect())
    });
    let waiting = futures_util::future::join_all(waiting);
    let asked = async {
        dead.holds(OF_ONE_NODE).await;
        let mut elsewhere = question(0);
        elsewhere.account_id = elsewhere.account_id.replace(&CHAIN.to_string(), "1");
        verdicts(&peer, vec![elsewhere]).await
    };
    tokio::select! {
        verdicts = asked => assert_eq!(verdicts, [true]),
        _ = waiting => panic!("it waited for the silent chain"),
    }
    assert_eq!(dead.count("eth_call"), OF_ONE_NODE, "none of them has gone");
}

#[tokio::test]
async fn verdicts_at_a_chosen_block_are_remembered_and_faults_are_not() {
    let Some(anvil) = Anvil::start().await else {
        return;
    };
    let front = Front::before(&anvil.url).await;
    let peer = Peer::start(config(&front.url)).await;
    let (owner, other) = (Owner::new(1), Owner::new(2));
    let wallet = anvil.owned_wallet(owner.address(), false).await;
    let block = anvil.head().await;
    anvil.mine_after(1).await;
    let calls = || front.count("eth_call");

    front.obey(|_| Reply::Status(500));
    fault(&peer, asked_at(block, wallet, owner.sign(TEXT))).await;
    front.obey(|_| Reply::Forward);
    let questions = || {
        vec![
            asked_at(block, wallet, owner.sign(TEXT)),
            asked_at(block, wallet, other.sign(TEXT)),
        ]
    };
    assert_eq!(verdicts(&peer, questions()).await, [true, false]);
    assert_eq!(calls(), 2, "a fault is not remembered");
    assert_eq!(verdicts(&peer, questions()).await, [true, false]);
    assert_eq!(calls(), 2, "both verdicts are");

    // Each part of the question makes it another one.
    let mut another_hash = asked_at(block, wallet, owner.sign(TEXT));
    another_hash.hash = vec![3; 32].into();
    let others = vec![
        asked_at(block + 1, wallet, owner.sign(TEXT)),
        asked_at(block, owner.address(), owner.sign(TEXT)),
        asked_at(block, wallet, owner.sign("x")),
        another_hash,
    ];
    assert_eq!(verdicts(&peer, others).await, [true, true, false, false]);
    assert_eq!(calls(), 6);

    // Without a block there is nothing to remember it by, even where the newest one was asked.
    let newest = || vec![asked(wallet, owner.sign(TEXT))];
    assert_eq!(verdicts(&peer, newest()).await, [true]);
    assert_eq!(verdicts(&peer, newest()).await, [true]);
    assert_eq!(calls(), 8);
}

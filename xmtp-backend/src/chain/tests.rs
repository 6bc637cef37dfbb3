use super::check::Check;
use super::verdicts::{Key, Verdicts, digest};
use super::*;
use crate::config::Secret;
use crate::limits::WALLET_SIGNATURE_BYTES;

#[test]
fn a_configuration_with_another_address_is_refused() {
    let mut config = Config::ephemeral("org.example.test");
    let address = Secret::new("http://node.example.org/secret");
    config.chains.insert("eip155:7".to_owned(), address);
    let error = config.check().expect_err("refused");
    assert_eq!(error.field, "chains.eip155:7");
    assert!(!error.problem.contains("example.org"));
}

#[test]
fn a_node_shows_no_address() {
    let mut config = Config::ephemeral("org.example.test");
    let secret = Secret::new("https://node.example.org/secret");
    config.chains.insert("eip155:7".to_owned(), secret);
    let shown = format!("{:?}", Chains::new(&config).expect("chains"));
    assert!(
        shown.contains("chain_id: 7") && !shown.contains("example.org"),
        "{shown}"
    );
}

#[test]
fn the_least_recently_used_verdict_makes_room() {
    let verdicts = Verdicts::new(NonZeroUsize::new(2).expect("two"));
    let key = |block| Key {
        chain_id: 1,
        account: [1; 20],
        hash: [1; 32],
        signature: digest(b"signed"),
        block,
    };
    verdicts.put(key(1), true);
    verdicts.put(key(2), false);
    assert_eq!(verdicts.get(&key(1)), Some(true));
    verdicts.put(key(3), true);
    assert_eq!(verdicts.get(&key(2)), None);
    assert_eq!(
        (verdicts.get(&key(1)), verdicts.get(&key(3))),
        (Some(true), Some(true))
    );
}

#[test]
fn what_no_wallet_can_accept_is_not_asked() {
    let check = Check::new();
    let call = |signature: &[u8]| check.call([1; 20], &[2; 32], signature);
    assert!(call(&[]).is_some());
    assert!(call(&[0; WALLET_SIGNATURE_BYTES]).is_some());
    assert!(call(&[0; WALLET_SIGNATURE_BYTES + 1]).is_none());
    let magic: [u8; 32] = [[0x64, 0x92]; 16].concat().try_into().expect("32 bytes");
    assert!(call(&magic).is_none());
    assert!(call(&[&[0xff; 96], &magic[..]].concat()).is_none());
}

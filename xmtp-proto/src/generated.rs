//! Generated code, in a module tree that mirrors the proto packages because
//! the generated paths rely on it; `lib.rs` re-exports it under short paths.

#![allow(missing_docs, missing_debug_implementations, unreachable_pub)]
#![allow(clippy::all)]

pub mod xmtp {
    pub mod backend {
        pub mod v1 {
            include!(concat!(env!("OUT_DIR"), "/xmtp.backend.v1.rs"));
        }
    }
    pub mod identity {
        pub mod associations {
            include!(concat!(env!("OUT_DIR"), "/xmtp.identity.associations.rs"));
        }
    }
    pub mod mls {
        pub mod message_contents {
            include!(concat!(env!("OUT_DIR"), "/xmtp.mls.message_contents.rs"));
        }
    }
    pub mod storage {
        pub mod v1 {
            include!(concat!(env!("OUT_DIR"), "/xmtp.storage.v1.rs"));
        }
    }
}

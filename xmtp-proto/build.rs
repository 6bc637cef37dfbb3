//! Compiles the `.proto` sources without `protoc`.

// Cargo reads a build script's instructions from its standard output.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

const SOURCES: &[&str] = &[
    "xmtp/backend/v1/configuration.proto",
    "xmtp/backend/v1/envelope.proto",
    "xmtp/backend/v1/services.proto",
    "xmtp/backend/v1/subscription.proto",
    "xmtp/identity/associations/association.proto",
    "xmtp/identity/associations/signature.proto",
    "xmtp/mls/message_contents/group.proto",
    "xmtp/mls/message_contents/message.proto",
    "xmtp/mls/message_contents/permissions.proto",
    "xmtp/mls/message_contents/transcript.proto",
    "xmtp/mls/message_contents/welcome.proto",
    "xmtp/storage/v1/storage.proto",
];

/// Messages that hold secrets; `src/redact.rs` writes their `Debug`.
const SECRET: &[&str] = &[
    "xmtp.mls.message_contents.GroupMutableMetadataV1",
    "xmtp.mls.message_contents.RemoteAttachmentInfo",
    "xmtp.mls.message_contents.WelcomePointer.WelcomeV1Pointer",
    "xmtp.storage.v1.KeyPackageRecord",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=build.rs");

    let fds = protox::compile(SOURCES, ["proto"])?;

    let mut embedded = fds.clone();
    for file in &mut embedded.file {
        file.source_code_info = None;
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), embedded.encode_to_vec())?;

    let mut config = tonic_prost_build::Config::new();
    config
        .bytes(["."])
        // Ordered maps: equal messages encode to equal bytes.
        .btree_map(["."])
        .enable_type_names()
        .type_name_domain(["."], "type.googleapis.com")
        .skip_debug(SECRET);
    tonic_prost_build::configure()
        .build_transport(false)
        .client_mod_attribute(".", r#"#[cfg(feature = "grpc-client")]"#)
        .server_mod_attribute(".", r#"#[cfg(feature = "grpc-server")]"#)
        .compile_fds_with_config(fds, config)?;
    Ok(())
}

// Compiles the contracts beside this file, or compares what is checked in with what the compiler gives.
//
//     node build.mjs          writes NAME.hex for each contract that the server or its tests use
//     node build.mjs --check  fails if one of them differs
//
// The compiler is the npm package `solc` of exactly the version below, found as node finds packages or in
// the folder that SOLC_PACKAGES names.

import { createRequire } from "node:module";
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const SOLC_VERSION = "0.8.37";
const SOURCES = ["SignatureCheck.sol", "TestWallets.sol"];
const CONTRACTS = ["SignatureCheck", "OwnedWallet", "WalletFactory", "OddWallet"];

const here = dirname(fileURLToPath(import.meta.url));
const packages = process.env.SOLC_PACKAGES ?? here;
const solc = createRequire(join(packages, "packages.js"))("solc");
if (!solc.version().startsWith(`${SOLC_VERSION}+`)) {
  fail(`solc must be ${SOLC_VERSION}, this is ${solc.version()}`);
}

const text = (name) => readFileSync(join(here, name), "utf8");
const input = {
  language: "Solidity",
  sources: Object.fromEntries(SOURCES.map((name) => [name, { content: text(name) }])),
  settings: {
    // The oldest rules among the chains that are asked decide; newer ones run this code too.
    evmVersion: "paris",
    optimizer: { enabled: true, runs: 200 },
    metadata: { appendCBOR: false, bytecodeHash: "none" },
    outputSelection: { "*": { "*": ["evm.bytecode.object"] } },
  },
};
const output = JSON.parse(solc.compile(JSON.stringify(input)));
const complaints = output.errors ?? [];
if (complaints.length > 0) {
  fail(complaints.map((complaint) => complaint.formattedMessage).join("\n"));
}

const compiled = Object.assign({}, ...Object.values(output.contracts));
const differing = [];
for (const name of CONTRACTS) {
  const code = `${compiled[name].evm.bytecode.object}\n`;
  if (!process.argv.includes("--check")) {
    writeFileSync(join(here, `${name}.hex`), code);
  } else if (code !== text(`${name}.hex`)) {
    differing.push(name);
  }
}
if (differing.length > 0) {
  fail(`not what the compiler gives: ${differing.join(", ")}; run node build.mjs`);
}
console.log(`${CONTRACTS.length} contracts, solc ${SOLC_VERSION}`);

function fail(message) {
  console.error(message);
  process.exit(1);
}

// SPDX-License-Identifier: GPL-2.0-only
//
// Perfetto's trace_processor as the browser runs it (engine_bundle.js and trace_processor.wasm), in node:
//
//     node in_node.js DIRECTORY
//
// Bytes of its RPC protocol come in on standard input and go out on standard output.
"use strict";

const fs = require("fs");
const path = require("path");
const vm = require("vm");

const node = process;
const directory = node.argv[2];

// The module must take node for a worker of a page: no `process`, but the globals of workers.
delete globalThis.process;
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = Object;
globalThis.location = { href: "http://localhost/", protocol: "http:", host: "localhost" };
globalThis.XMLHttpRequest = class {
	open(_method, url) { this.file = path.join(directory, path.basename(String(url))); }
	send() { this.response = Uint8Array.from(fs.readFileSync(this.file)).buffer; }
};
console.log = console.warn = () => {}; // standard output carries replies only

vm.runInThisContext(fs.readFileSync(path.join(directory, "engine_bundle.js"), "utf8"), { filename: "engine_bundle.js" });
const port = {
	onmessage: null,
	postMessage(bytes) { for (let at = 0; at < bytes.length;) at += fs.writeSync(1, bytes, at); },
};
globalThis.onmessage({ data: port });

const waiting = [];
let ready = false;

// The module does not report when it is ready; until then the first message throws and can be sent again.
function feed() {
	while (waiting.length) {
		try {
			port.onmessage({ data: waiting[0] });
		} catch (error) {
			if (ready) throw error;
			setTimeout(feed, 20);
			return;
		}
		ready = true;
		waiting.shift();
	}
}
node.stdin.on("data", (bytes) => { waiting.push(Uint8Array.from(bytes)); feed(); });
node.stdin.on("end", () => node.exit(0));

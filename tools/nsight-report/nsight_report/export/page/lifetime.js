/* SPDX-License-Identifier: GPL-2.0-only */
/* One message: its lifetime as nested boxes, and its call tree. Names are only ever set as text. */
"use strict";

const duration = (ns) => {
	if (ns === null || ns === undefined) return "-";
	for (const [unit, scale] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]]) {
		if (Math.abs(ns) >= scale) {
			const value = ns / scale, size = Math.abs(value);
			return `${value.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0)} ${unit}`;
		}
	}
	return `${Math.round(ns)} ns`;
};

const element = (name, properties = {}, ...children) => {
	const made = Object.assign(document.createElement(name), properties);
	made.append(...children);
	return made;
};

const svgElement = (name, attributes = {}, text) => {
	const made = document.createElementNS("http://www.w3.org/2000/svg", name);
	for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
	if (text !== undefined) made.textContent = text;
	return made;
};

const TRACKS = {"R": "receive core (R)", "A": "application core (A)", "R and A": "receive and application core"};
const ROW = 18, CHARACTER = 6.2;

/* Draws `life` (see page_data.py) `width` pixels wide. */
function drawLifetime(life, width) {
	const end = Math.max(life.latency, 1), margin = 0.02 * end;
	const x = (ns) => ((Math.min(Math.max(ns, -margin), end + margin) + margin) / (end + 2 * margin)) * width;
	const levels = life.tracks.map((_, track) =>
		1 + life.boxes.reduce((most, box) => (box[0] === track ? Math.max(most, box[1]) : most), 0));
	const top = 14 * life.marks.length + 22;
	const bases = [];
	let y = top;
	life.tracks.forEach((_, track) => {
		y += 34 + levels[track] * ROW;
		bases.push(y);
	});
	const others = life.others.length ? y + 24 : y;
	const height = others + life.others.length * 14 + 26;
	const svg = svgElement("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", class: "lifetime"});
	svg.append(svgElement("title", {}, "Lifetime: calls on each core from the first to the last timestamp. The call tree below says the same."));

	/* Drawn last, with a white edge: lines that cross a text stay behind it. */
	const texts = [];
	const write = (at, y, name, text, half = 0) =>
		texts.push(svgElement("text", {x: half ? Math.min(Math.max(at, half), width - half) : at, y, class: name}, text));
	life.tracks.forEach(([cpu, side], track) => {
		const base = bases[track], high = levels[track] * ROW;
		svg.append(svgElement("rect", {x: 0, y: base - high, width, height: high, class: "elsewhere"}));
		for (const [of, from, to] of life.intervals)
			if (of === track) svg.append(svgElement("rect", {x: x(from), y: base - high, width: x(to) - x(from), height: high, class: "own"}));
		write(4, base - high - 18, "track", `core ${cpu}: ${TRACKS[side] || side}`);
		svg.append(svgElement("line", {x1: 0, x2: width, y1: base, y2: base, class: "base"}));
	});
	const labels = [];
	for (const [track, from, to, text] of life.anomalies) {
		const base = bases[track], high = levels[track] * ROW;
		svg.append(svgElement("rect", {x: x(from), y: base - high, width: Math.max(x(to) - x(from), 1), height: high, class: "cause"}));
		svg.append(svgElement("path", {d: `M${x(from)} ${base - high + 3}V${base - high - 2}H${Math.max(x(to), x(from) + 1)}V${base - high + 3}`, class: "bracket"}));
		labels.push([track, (x(from) + x(to)) / 2, base - high - 5, text]);
	}
	life.boxes.forEach((box, number) => {
		const [track, level, from, to, kind, name, flags] = box;
		const left = x(from), wide = Math.max(x(to) - left, 0.4), at = bases[track] - (level + 1) * ROW;
		const what = life.kinds[kind];
		if (what === "idle")
			svg.append(svgElement("line", {x1: left, x2: left + wide, y1: bases[track], y2: bases[track], class: "idle"}));
		else if (what !== "gap") {
			const rect = svgElement("rect", {x: left, y: at + 1, width: wide, height: ROW - 2, "data-box": number,
				class: `box ${wide < 3 ? "thin " : ""}${flags & 1 ? "inferred " : ""}${flags & 2 ? "red k-red" : "k-" + what.replace(" ", "-")}`});
			rect.append(svgElement("title", {}, boxText(life, box)));
			svg.append(rect);
		}
		const room = Math.floor((wide - 4) / CHARACTER);
		const text = what === "idle" ? "idle" : what === "gap" ? "untraced time" : life.names[name];
		if (room >= 4 && (text.length <= room || what !== "idle"))
			svg.append(svgElement("text", {x: left + wide / 2, y: at + ROW - 5, class: what === "idle" || what === "gap" ? "label soft" : "label"},
				text.length > room ? text.slice(0, room - 1) + "…" : text));
	});
	const taken = {};
	for (const [track, centre, at, text] of labels) {
		const half = text.length * CHARACTER * 0.53, middle = Math.min(Math.max(centre, half), width - half);
		const before = (taken[track] ||= []);
		if (before.some(([lo, hi]) => middle - half < hi && middle + half > lo)) continue;
		before.push([middle - half, middle + half]);
		write(middle, at, "cause-label", text);
	}
	life.marks.forEach(([name, at, error], i) => {
		const place = x(at), text = `${name} +${duration(at)}${error ? ` ± ${duration(error)}` : ""}`, right = place + text.length * CHARACTER > width;
		if (error) svg.append(svgElement("rect", {x: x(at - error), y: 4, width: x(at + error) - x(at - error), height: height - 26, class: "band"}));
		svg.append(svgElement("line", {x1: place, x2: place, y1: 6 + 14 * i, y2: height - 20, class: "mark"}));
		write(place + (right ? -4 : 4), 14 + 14 * i, right ? "mark-label end" : "mark-label", text);
	});
	life.others.forEach(([name, from, to], i) => {
		const at = others + 14 * i + 4;
		svg.append(svgElement("line", {x1: x(from), x2: x(to), y1: at, y2: at, class: "other"}));
		const left = Math.max(x(from), 4), beyond = left + name.length * CHARACTER * 0.85 > width;
		write(beyond ? width - 4 : left, at - 4, beyond ? "other-label end" : "other-label", name);
	});
	const step = [1, 2, 5].flatMap((f) => [...Array(10).keys()].map((e) => f * 10 ** e)).sort((a, b) => a - b)
		.find((s) => (s / end) * width > 70) || end;
	for (let at = 0; at <= end; at += step)
		write(x(at), height - 6, "tick", duration(at), duration(at).length * CHARACTER / 2);
	svg.append(...texts);
	return svg;
}

function boxText(life, [, , from, to, kind, name, flags]) {
	return `${life.names[name]} (${life.kinds[kind]}): ${duration(to - from)} from +${duration(from)}${flags & 1 ? ", an end is inferred" : ""}${flags & 2 ? ", took longer than usual" : ""}`;
}

const tableRow = (numbers, ...texts) => element("tr", {}, ...texts.map((text, i) => element("td", {className: numbers.includes(i) ? "n" : "", textContent: text})));

/* Which threads worked on a request, in turn. */
function drawHands(hands) {
	return hands.map(([thread, from, ns, how, sure]) => tableRow([1, 2], thread, `+${duration(from)}`, duration(ns), how, sure));
}

/* The way of a message's packets: one row a packet, and one for each layer that it passed. */
function drawWays(ways) {
	const time = (ns, bound) => duration(ns) + (bound < 0 ? " above the smallest" : bound ? ` ±${duration(bound)}` : "");
	return ways.flatMap(([packet, ns, bound, again, layers]) => [
		tableRow([0, 3], packet, "whole way", again ? "sent again" : "", time(ns, bound)),
		...layers.map(([layer, what, part, error]) => tableRow([0, 3], "", layer, what, time(part, error)))]);
}

/* The call tree as nested lists that open and close; paths that took most longer are open. */
function drawTree(rows) {
	const root = element("ul", {className: "tree"}), stack = [root];
	const most = Math.max(...rows.map(([depth, , ns, , , usual]) => (depth ? ns - (usual || 0) : 0)), 1);
	rows.forEach(([depth, name, ns, own, calls, usual], i) => {
		const inner = rows[i + 1] && rows[i + 1][0] > depth;
		const more = usual === null ? null : ns - usual;
		const line = [element("span", {className: "tree-name", textContent: name}), " ",
			element("span", {className: "tree-ns", textContent: `${duration(ns)}, own ${duration(own)}${depth ? `, ${calls} call${calls === 1 ? "" : "s"}` : ""}`
				+ (more === null ? "" : `, usual ${duration(usual)} (${more >= 0 ? "+" : ""}${duration(more)})`)})];
		const item = element("li");
		if (more !== null && depth && more > 0.3 * most) item.className = "longer";
		if (inner) {
			const list = element("ul");
			item.append(element("details", {open: depth < 2 || (more !== null ? more > 0.1 * most : ns > 0.2 * rows[0][2])},
				element("summary", {}, ...line), list));
			stack[depth].append(item);
			stack[depth + 1] = list;
		} else {
			item.append(...line);
			(stack[depth] || root).append(item);
		}
	});
	return root;
}

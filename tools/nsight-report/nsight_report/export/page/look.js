/* SPDX-License-Identifier: GPL-2.0-only */
/* One look with the figures (plots/style.py): colours of the screen at hand, markers, axes. Needs lifetime.js. */
"use strict";

/* A colour of the style sheet as the canvas needs it, light or dark: computed for an element that nobody sees. */
const colourOf = (variable) => {
	document.head.style.color = `var(${variable})`;
	return getComputedStyle(document.head).color;
};
const inkOf = (cause) => `var(--c-${(cause?.colour ?? "#555555").slice(1)})`;
const dark = matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement;
const isDark = () => (root.dataset.scheme ? root.dataset.scheme === "dark" : dark.matches);

const polygon = (corners, turn = 0) => [...Array(corners).keys()].map((i) => {
	const angle = turn + (2 * Math.PI * i) / corners - Math.PI / 2;
	return [Math.cos(angle), Math.sin(angle)];
});
const star = polygon(10).map(([x, y], i) => (i % 2 ? [0.45 * x, 0.45 * y] : [x, y]));
const cross = (w, turn) => [[-w, -1], [w, -1], [w, -w], [1, -w], [1, w], [w, w], [w, 1], [-w, 1], [-w, w], [-1, w], [-1, -w], [-w, -w]]
	.map(([x, y]) => [x * Math.cos(turn) - y * Math.sin(turn), x * Math.sin(turn) + y * Math.cos(turn)]);
const SHAPES = {
	o: polygon(24), s: [[-0.88, -0.88], [0.88, -0.88], [0.88, 0.88], [-0.88, 0.88]], D: polygon(4), d: polygon(4).map(([x, y]) => [0.6 * x, y]),
	"^": polygon(3), v: polygon(3, Math.PI), "<": polygon(3, -Math.PI / 2), ">": polygon(3, Math.PI / 2), p: polygon(5), h: polygon(6),
	H: polygon(6, Math.PI / 6), 8: polygon(8, Math.PI / 8), "*": star, P: cross(0.35, 0), X: cross(0.35, Math.PI / 4), x: cross(0.14, Math.PI / 4),
};
const shape = (marker) => SHAPES[marker] || SHAPES.o;
const icon = (cause) => {
	const svg = svgElement("svg", {width: 14, height: 14, viewBox: "-1.2 -1.2 2.4 2.4", "aria-hidden": "true", class: "icon"});
	svg.append(svgElement("polygon", {points: shape(cause.marker).map((p) => p.join(",")).join(" "), fill: inkOf(cause), stroke: "var(--c-000000)", "stroke-width": 0.08}));
	return svg;
};

/* ---- axes */
const FONT = "12px system-ui, sans-serif";
const axisLook = {
	stroke: () => colourOf("--ink"), font: FONT, labelFont: FONT, labelSize: 20, size: 32, space: 64, border: {show: true, width: 1, stroke: () => colourOf("--ink")},
	grid: {stroke: () => colourOf("--grid"), width: 1}, ticks: {stroke: () => colourOf("--ink"), width: 1, size: 4},
};
/* Labels of a logarithmic axis: decades, and 2 and 5 where few decades are shown. */
const few = (ticks) => { const known = ticks.filter((v) => v); return known.at(-1) / known[0] < 200; };
const isRound = (v, ticks) => v && (few(ticks) ? [1, 2, 5] : [1]).includes(+(v / 10 ** Math.floor(Math.log10(v) + 1e-9)).toPrecision(6));
const latencyTicks = (u, ticks) => ticks.map((v) => (isRound(v, ticks) ? duration(+v.toPrecision(6)).replace(/\.0+ /, " ") : ""));
const percentTicks = (u, ticks) => ticks.map((v) => (isRound(v, ticks) ? `${+v.toPrecision(6)} %` : ""));
/* Where the marks of a logarithmic axis are: uPlot counts from its low end, which need not be round. */
const decades = (low, high) => {
	const found = [];
	for (let decade = 10 ** Math.floor(Math.log10(low)); decade <= high; decade *= 10)
		for (let i = 1; i < 10; i++) if (i * decade >= low && i * decade <= high) found.push(i * decade);
	return found;
};
/* Lines only where a label is, as in the figures. */
const labelled = (u, splits) => splits.map((v) => (isRound(v, splits) ? v : null));
const logAxis = {...axisLook, space: 30, grid: {...axisLook.grid, filter: labelled}, splits: (u, axis, low, high) => decades(low, high), filter: (u, splits) => splits};

/* ---- box plots in a table, on one logarithmic axis that stands in its heading */
const BOX = 220;
function boxScale(boxes) {
	const low = Math.log10(Math.max(Math.min(...boxes), 1)), wide = Math.log10(Math.max(...boxes, 10)) - low || 1;
	const at = (ns) => 10 + ((Math.log10(Math.max(ns, 1)) - low) / wide) * (BOX - 20);
	return {at, ticks: decades(10 ** low, 10 ** (low + wide)).filter((v) => Number.isInteger(+Math.log10(v).toFixed(6)))};
}
function boxAxis({at, ticks}) {
	const svg = svgElement("svg", {width: BOX, height: 18, viewBox: `0 0 ${BOX} 18`, "aria-hidden": "true", class: "box-axis"});
	const step = Math.max(1, Math.ceil(52 / (ticks.length > 1 ? at(ticks[1]) - at(ticks[0]) : BOX)));
	ticks.forEach((ns, i) => {
		svg.append(svgElement("line", {x1: at(ns), x2: at(ns), y1: 14, y2: 18}));
		if (i % step === 0) svg.append(svgElement("text", {x: Math.min(Math.max(at(ns), 16), BOX - 20), y: 11}, duration(ns).replace(/\.0+ /, " ")));
	});
	svg.append(svgElement("line", {x1: 0, x2: BOX, y1: 17.5, y2: 17.5}));
	return svg;
}
function boxPlot(cause, {at, ticks}) {
	const [a, p5, q1, q2, q3, p95, b] = cause.box, ink = "var(--c-000000)";
	const svg = svgElement("svg", {width: BOX, height: 28, viewBox: `0 0 ${BOX} 28`, role: "img"});
	svg.append(svgElement("title", {}, `from ${duration(a)} to ${duration(b)}, quartiles ${duration(q1)}, ${duration(q2)}, ${duration(q3)}`),
		...ticks.map((ns) => svgElement("line", {x1: at(ns), x2: at(ns), y1: 0, y2: 28, stroke: "var(--grid)"})),
		svgElement("line", {x1: at(p5), x2: at(p95), y1: 14, y2: 14, stroke: ink}),
		svgElement("rect", {x: at(q1), y: 6, width: Math.max(at(q3) - at(q1), 1), height: 16, fill: inkOf(cause), "fill-opacity": 0.55, stroke: ink}),
		svgElement("polygon", {points: shape(cause.marker).map(([px, py]) => `${at(q2) + 5 * px},${14 + 5 * py}`).join(" "), fill: inkOf(cause), stroke: ink, "stroke-width": 0.7}));
	return svg;
}

"use strict";
// All texts from files become text nodes. None of the data is used as markup, an address or code.
const DATA = JSON.parse(document.getElementById("data").textContent);
const TEXTS = DATA.texts; // the texts of nodes, which refer to them by number
const MANY = 250; // longer lists are shown in parts, which can be opened
const MOST_TYPES = 4; // the maximum result types in the line of a node
const MOST_ON_PAPER = 2000; // the maximum modules that are opened for printing
const NODE = Object.freeze({name: 0, operator: 1, module: 2, identity: 3, arguments: 4, constants: 5, results: 6, origin: 7, bodies: 8});

function make(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

const counted = (number) => number.toLocaleString("en-US");

/** Return an element that can be opened; `fill` creates its contents when it is first shown. */
function fold(className, head, fill) {
  const made = make("details", className, head);
  let isEmpty = true;
  made.show = () => {
    if (isEmpty) made.append(...fill());
    isEmpty = false;
    made.open = true;
  };
  made.addEventListener("toggle", () => made.open && made.show());
  return made;
}

const titled = (text) => make("summary", "", make("span", "name", text));

/** Return the elements that `draw` creates for items; many items are in parts that open. */
function inParts(items, draw, parts = []) {
  if (items.length <= MANY) return draw(items);
  for (let start = 0; start < items.length; start += MANY) {
    const part = items.slice(start, start + MANY);
    const range = `${counted(start + 1)} to ${counted(start + part.length)}`;
    parts.push(fold("part", titled(range), () => draw(part)));
  }
  return parts;
}

const eachBy = (draw) => (items) => items.map(draw);

/** Return a table. "#" before a name in `head` marks a column of numbers; cells are texts or elements. */
function table(head, rows) {
  const style = head.map((name) => (name.startsWith("#") ? "number" : ""));
  const line = (cells, tag) => make("tr", "", ...cells.map((cell, i) => make(tag, style[i], cell)));
  const names = head.map((name) => name.replace(/^#/, ""));
  return inParts(rows, (part) => {
    const body = make("tbody", "", ...part.map((row) => line(row, "td")));
    return [make("div", "wide", make("table", "", make("thead", "", line(names, "th")), body))];
  });
}

const list = (pairs) => make("dl", "", ...pairs.flatMap(([name, text]) => [make("dt", "", name), make("dd", "", text)]));

/** Split a list of numbers into rows of `size`. */
function rows(numbers, size) {
  return Array.from({length: numbers.length / size}, (_, i) => numbers.slice(size * i, size * (i + 1)));
}

const texts = (pairs) => rows(pairs, 2).map((pair) => pair.map((number) => TEXTS[number]));

function link(item, text = item.name) {
  const made = make("a", "", text);
  made.href = `#${item.address}`;
  return made;
}

/** Open the items that contain an item of a tree, and then the item. */
function reveal(item) {
  const path = [];
  for (let at = item; at; at = at.owner) path.push(at);
  for (const at of path.reverse()) {
    at.owner?.parts?.[Math.floor(at.position / MANY)]?.show();
    at.element.show();
  }
}

class Item {
  parts; // the parts that show its items, if these are many
  items;
  owner; // the item that contains this one; undefined: not known yet; null: none

  add(item) {
    item.owner = this;
    this.items ??= [];
    item.position = this.items.push(item) - 1;
  }

  draw() {
    this.element ??= fold(this.style, this.head(), () => this.fill());
    return this.element;
  }

  fill() {
    this.parts = [];
    return inParts(this.items ?? [], eachBy((item) => item.draw()), this.parts);
  }
}

class Module extends Item {
  style = "module";

  constructor(row, address) {
    super();
    [this.above, this.path, this.className, ...this.numbers] = row;
    this.name = this.path || "(root)";
    this.address = address;
  }

  head() {
    const own = this.path.slice(this.path.lastIndexOf(".") + 1) || this.name;
    const name = make("span", "name", own, " ", make("span", "faint", this.className));
    return make("summary", "row", name, ...this.numbers.map((number) => make("span", "number", number)));
  }
}

class Body extends Item {
  style = "body";

  head() {
    return titled(`body ${this.title}`);
  }
}

class Node extends Item {
  style = "node";

  constructor(program, graph, row, address) {
    super();
    Object.assign(this, {program, graph, row, address});
  }

  get name() {
    return TEXTS[this.row[NODE.name]];
  }

  get operator() {
    return TEXTS[this.row[NODE.operator]];
  }

  get module() {
    return this.program.modules[this.row[NODE.module]];
  }

  results() {
    return rows(this.row[NODE.results], 2).map(([name, type]) => [TEXTS[name], DATA.types[type]]);
  }

  head() {
    const types = this.results().slice(0, MOST_TYPES).map(([, type]) => type.shape ?? "").join(", ");
    const text = [make("span", "name", this.name), " ", make("span", "faint", `${this.operator} ${types}`)];
    return make("summary", "", ...text);
  }

  fill() {
    const made = [list([...texts(this.row[NODE.identity]), ["module", link(this.module)]])];
    const given = rows(this.row[NODE.arguments], 3).map(([name, source, output]) => {
      const node = this.graph[source];
      const [value, type] = node.results()[output];
      return [TEXTS[name], link(node, value), type.shape ?? ""];
    });
    const constants = texts(this.row[NODE.constants]).map(([name, text]) => [name, text, ""]);
    const shown = this.results().map(([name, type]) => [name, ...["shape", "strides", "device", "bytes"].map((key) => type[key] ?? "")]);
    const users = this.program.users(this.graph).get(this) ?? [];
    if (given.length + constants.length) made.push(...table(["argument", "value", "type"], [...given, ...constants]));
    if (shown.length) made.push(...table(["result", "type", "strides", "device", "#bytes"], shown));
    made.push(...links("used by", users));
    if (this.row[NODE.origin].length) made.push(list(texts(this.row[NODE.origin])));
    return [...made, ...(this.items ?? []).map((body) => body.draw())];
  }
}

/** Return a word and links to nodes; many links are in parts that open. */
function links(word, nodes) {
  const line = (part) => [make("p", "", ...part.flatMap((node) => [" ", link(node)]))];
  if (!nodes.length) return [];
  if (nodes.length > MANY) return [make("p", "faint", word), ...inParts(nodes, line)];
  return [make("p", "", make("span", "faint", word), ...line(nodes)[0].childNodes)];
}

class Program {
  #users = new Map();

  constructor(data, number) {
    this.modules = data.modules.map((row, i) => new Module(row, `module-${number}-${i}`));
    this.graphs = data.graphs.map(({nodes}, graph) => {
      const made = [];
      nodes.forEach((row, i) => made.push(new Node(this, made, row, `node-${number}-${graph}-${i}`)));
      return made;
    });
    this.data = data;
    this.modules[0].owner = null;
    this.#fillModules(data.graphs[0].inputs);
    for (const nodes of this.graphs) for (const node of nodes) this.#addBodies(node);
  }

  /** Add nodes and modules to the modules that contain them: inputs, then the rest in the order of the graph. */
  #fillModules(inputs) {
    for (const node of this.graphs[0].slice(0, inputs)) node.module.add(node);
    for (const node of this.graphs[0].slice(inputs)) {
      this.#enter(node.module);
      node.module.add(node);
    }
    for (const module of this.modules) this.#enter(module);
  }

  #enter(module) {
    for (let at = module; at.owner === undefined; at = this.modules[at.above]) this.modules[at.above].add(at);
  }

  #addBodies(node) {
    for (const number of node.row[NODE.bodies]) {
      const body = new Body();
      body.title = this.data.graphs[number].id;
      for (const inner of this.graphs[number]) body.add(inner);
      node.add(body);
    }
  }

  /** Return a map from each node of a graph to the nodes that use its values. */
  users(graph) {
    if (!this.#users.has(graph)) {
      const found = new Map();
      for (const node of graph) {
        const sources = new Set(rows(node.row[NODE.arguments], 3).map((row) => graph[row[1]]));
        for (const source of sources) found.has(source) ? found.get(source).push(node) : found.set(source, [node]);
      }
      this.#users.set(graph, found);
    }
    return this.#users.get(graph);
  }

  draw() {
    const {facts, notes, tables, state} = this.data;
    const heads = ["module", "parameters", "bytes of state", "operators", "FLOPs"];
    const columns = heads.map((text, i) => make("span", i ? "number" : "name", text));
    const root = this.modules[0].draw();
    root.show();
    return [
      list(facts),
      ...notes.map((note) => make("p", "faint", `FLOPs leave out ${note}.`)),
      ...drawTables(tables),
      make("h4", "", "Modules"), make("div", "tree", make("div", "row head", ...columns), root),
      make("h4", "", "Operators by number of calls"), ...this.#operators(),
      ...drawTables(state),
    ];
  }

  #operators() {
    const found = new Map();
    for (const node of this.graphs.flat()) {
      const name = node.operator;
      if (name) found.has(name) ? found.get(name).push(node) : found.set(name, [node]);
    }
    const sorted = [...found].sort((one, other) => other[1].length - one[1].length);
    return inParts(sorted, eachBy(([name, nodes]) => {
      const bar = make("span", "bar");
      bar.style.width = `${(100 * nodes.length) / sorted[0][1].length}%`;
      const head = make("summary", "row operator", make("span", "name", name), make("span", "number", counted(nodes.length)), bar);
      return fold("", head, () => links("calls", nodes));
    }));
  }
}

const drawTables = (tables) => Object.entries(tables).flatMap(([name, made]) => [make("h4", "", name), ...table(made.head, made.rows)]);

const PROGRAMS = [];
for (const file of DATA.files) {
  for (const [i, program] of file.programs.entries()) file.programs[i] = PROGRAMS[PROGRAMS.push(new Program(program, PROGRAMS.length)) - 1];
}

function drawComparison({title, verdict, tables, programs, nodes}) {
  const [first, second] = programs.map((number) => PROGRAMS[number]);
  const cell = (program, number) => (number === null ? "" : link(program.graphs[0][number]));
  const differing = ([title, isOpen, found]) => {
    const lines = found.map(([module, mine, theirs, what]) => [module, cell(first, mine), cell(second, theirs), what]);
    const made = fold("", titled(title), () => table(["module", "first", "second", "what differs"], lines));
    if (isOpen) made.show();
    return made;
  };
  const folds = nodes.map(differing);
  return make("section", "difference", make("h2", "", title), make("p", "", verdict), ...folds, ...drawTables(tables));
}

function drawFile(file) {
  const parts = file.programs.flatMap((program) => {
    const {name} = program.data;
    return [...(file.programs.length > 1 || name !== "model" ? [make("h3", "", `Program ${name}`)] : []), ...program.draw()];
  });
  const title = DATA.files.length > 1 ? [make("h2", "", file.name)] : [];
  return make("section", "file", ...title, list(file.facts), ...parts);
}

/** Return the search field, with the nodes that it finds below it. */
function drawSearch() {
  const field = make("input", "");
  Object.assign(field, {type: "search", placeholder: "Search nodes by name, operator or module"});
  field.ariaLabel = field.placeholder;
  const found = make("div", "found");
  const show = () => {
    const wanted = field.value.trim().toLowerCase();
    found.replaceChildren(...(wanted ? search(wanted) : []));
  };
  for (const event of ["input", "focus"]) field.addEventListener(event, show);
  return make("div", "search", field, found);
}

function search(wanted) {
  const holds = (text) => text.toLowerCase().includes(wanted);
  const texts = TEXTS.map(holds);
  const nodes = PROGRAMS.flatMap((program) => {
    const modules = program.modules.map((module) => holds(module.path));
    return program.graphs.flat().filter(({row}) => texts[row[NODE.name]] || texts[row[NODE.operator]] || modules[row[NODE.module]]);
  });
  const line = (node) => make("p", "", link(node), " ", make("span", "faint", `${node.operator} ${node.module.path}`));
  return [make("p", "faint", `${counted(nodes.length)} found`), ...inParts(nodes, eachBy(line))];
}

/** Show the node or module that an address names. */
function go(address) {
  const [kind, program, ...numbers] = address.split("-");
  const found = PROGRAMS[program];
  const item = kind === "module" ? found?.modules[numbers[0]] : found?.graphs[numbers[0]]?.[numbers[1]];
  if (!item) return;
  reveal(item);
  document.querySelector(".found").replaceChildren();
  item.element.firstChild.scrollIntoView({block: "center"});
  item.element.firstChild.focus({preventScroll: true});
}

document.addEventListener("click", (event) => {
  const address = event.target.closest("a")?.hash.slice(1);
  if (!address) return;
  event.preventDefault(); // in a notebook's frame, the browser would change the notebook's address
  if (location.hash.slice(1) === address) go(address);
  else location.hash = address;
});
addEventListener("hashchange", () => go(location.hash.slice(1)));
addEventListener("beforeprint", () => PROGRAMS.forEach(({modules}) => modules.slice(0, MOST_ON_PAPER).forEach(reveal)));

const names = DATA.files.map((file) => file.name);
document.title = names.join(", ");
document.body.replaceChildren(make("h1", "", names.join(" and ")), drawSearch(), ...DATA.comparisons.map(drawComparison), ...DATA.files.map(drawFile));
go(location.hash.slice(1));

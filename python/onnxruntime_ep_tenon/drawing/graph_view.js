// Zoom, pan, search and details of a drawn graph. Each .graph-view of the page has an SVG whose
// boxes and edges carry numbers, and a script element with what these numbers mean.
"use strict";

const LEGIBLE = 0.75, NEAREST = 4, FARTHEST = 0.02;  // pixels per unit of the drawing

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// What is seen, moved by pointers, wheel, keys and buttons.
class Camera {
  constructor(holder) {
    this.holder = holder;
    this.svg = holder.querySelector("svg");
    const {width, height} = this.svg.viewBox.baseVal;
    this.whole = {x: 0, y: 0, width, height};
    this.x = this.y = 0;
    this.scale = 1;
    this.pointers = new Map();
    holder.classList.add("live");
    for (const name of ["width", "height", "viewBox"]) this.svg.removeAttribute(name);
    this.svg.querySelector(".canvas").remove();
    this.paper = this.svg.querySelector("g");
    // What is not in sight is taken out: a graph of thousands of nodes stays quick.
    this.parts = new Map();
    for (const part of this.svg.querySelectorAll(".box, .edge")) {
      this.parts.set(part, {box: part.getBBox(), parent: part.parentNode, seen: true});
    }
    this.listen();
    this.begin(holder.querySelector(".frame rect").getBBox());
    new ResizeObserver(() => this.show()).observe(holder);
  }

  get width() { return this.holder.clientWidth; }
  get height() { return this.holder.clientHeight; }

  show() {
    const {x, y, scale} = this;
    const right = x + this.width / scale, low = y + this.height / scale;
    this.paper.setAttribute("transform", `scale(${scale}) translate(${-x} ${-y})`);
    this.holder.classList.toggle("far", scale < 0.45);
    this.holder.classList.toggle("very-far", scale < 0.2);
    for (const [part, known] of this.parts) {
      const {box} = known;
      const seen = box.x < right && box.x + box.width > x && box.y < low && box.y + box.height > y;
      if (seen && !known.seen) known.parent.append(part);
      if (!seen && known.seen) part.remove();
      known.seen = seen;
    }
  }

  scaleTo(scale) {
    const all = Math.min(this.width / this.whole.width, this.height / this.whole.height);
    const least = Math.min(FARTHEST, all / 1.2);
    this.scale = Math.min(NEAREST, Math.max(least, scale));
  }

  centre({x, y, width, height}) {
    this.x = x + width / 2 - this.width / this.scale / 2;
    this.y = y + height / 2 - this.height / this.scale / 2;
    this.show();
  }

  // All of a rectangle, never larger than life.
  fit(rectangle = this.whole) {
    const across = this.width / (rectangle.width + 40), down = this.height / (rectangle.height + 40);
    this.scaleTo(Math.min(1.2, across, down));
    this.centre(rectangle);
  }

  // The whole where it can be read, else the upper end of the main graph.
  begin(main) {
    this.fit();
    if (this.scale >= LEGIBLE) return;
    this.scaleTo(Math.max(LEGIBLE, Math.min(1, this.width / (main.width + 20))));
    this.centre(main);
    this.y = main.y - 10;
    this.show();
  }

  jump(part) {
    if (this.scale < LEGIBLE) this.scaleTo(1);
    this.centre(this.parts.get(part).box);
  }

  // The point of the drawing under (left, top) stays where it is.
  zoom(factor, left = this.width / 2, top = this.height / 2) {
    const before = this.scale;
    this.scaleTo(before * factor);
    this.x += left / before - left / this.scale;
    this.y += top / before - top / this.scale;
    this.show();
  }

  pan(right, down) {
    this.x += right / this.scale;
    this.y += down / this.scale;
    this.show();
  }

  listen() {
    const {holder} = this;
    holder.addEventListener("wheel", event => {
      event.preventDefault();
      const box = holder.getBoundingClientRect();
      const lines = event.deltaMode === 1 ? 16 : 1;
      const speed = event.ctrlKey ? 0.01 : 0.0016;  // a pinch of a touchpad comes with ctrlKey
      const factor = Math.exp(-event.deltaY * lines * speed);
      this.zoom(factor, event.clientX - box.left, event.clientY - box.top);
    }, {passive: false});
    holder.addEventListener("pointerdown", event => {
      this.pointers.set(event.pointerId, event);
      this.moved = this.pointers.size > 1;
    });
    holder.addEventListener("pointermove", event => this.drag(event));
    for (const kind of ["pointerup", "pointercancel"]) {
      holder.addEventListener(kind, event => this.pointers.delete(event.pointerId));
    }
  }

  drag(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const right = before.clientX - event.clientX, down = before.clientY - event.clientY;
    if (!this.moved && Math.hypot(right, down) < 4) return;  // a click's tremble
    if (!this.moved) this.holder.setPointerCapture(event.pointerId);
    this.moved = true;
    const other = [...this.pointers.values()].find(p => p.pointerId !== event.pointerId);
    if (other) {
      const apart = p => Math.hypot(p.clientX - other.clientX, p.clientY - other.clientY);
      const box = this.holder.getBoundingClientRect();
      this.zoom(apart(event) / Math.max(1, apart(before)),
                (event.clientX + other.clientX) / 2 - box.left,
                (event.clientY + other.clientY) / 2 - box.top);
    } else {
      this.pan(right, down);
    }
    this.pointers.set(event.pointerId, event);
  }
}

class GraphView {
  constructor(root) {
    this.root = root;
    this.data = JSON.parse(root.querySelector("script[type='application/json']").textContent);
    this.holder = root.querySelector(".drawing");
    this.details = root.querySelector(".details");
    this.input = root.querySelector("input");
    this.count = root.querySelector("output");
    this.boxes = this.byNumber("box");
    this.frames = this.byNumber("graph");
    this.edges = [...this.holder.querySelectorAll(".edge")];
    this.texts = this.data.boxes.map(box => this.searched(box));
    this.hits = [];
    this.current = -1;
    this.camera = new Camera(this.holder);
    this.listen();
    this.showHelp();
  }

  byNumber(key) {
    const found = [];
    for (const part of this.holder.querySelectorAll(`[data-${key}]`)) found[part.dataset[key]] = part;
    return found;
  }

  // What a search looks at, one after the other: the first that finds anything is all it shows, so
  // that "Conv" finds convolutions and not the Slice that reads a tensor of such a name.
  searched(box) {
    const tensors = [...box.inputs, ...box.outputs].map(number => this.data.tensors[number].name);
    const texts = [box.op, `${box.op}\n${box.name}`, tensors.join("\n")];
    return texts.map(text => text.toLowerCase());
  }

  listen() {
    const {root, camera} = this;
    this.input.addEventListener("input", () => this.search(this.input.value));
    this.input.addEventListener("keydown", event => {
      if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") this.clear();
    });
    const actions = {
      next: () => this.step(1), previous: () => this.step(-1),
      nearer: () => camera.zoom(1.4), farther: () => camera.zoom(1 / 1.4), fit: () => camera.fit(),
    };
    for (const [name, action] of Object.entries(actions)) {
      root.querySelector(`[data-action=${name}]`).addEventListener("click", action);
    }
    for (const button of root.querySelectorAll(".legend button")) {
      button.addEventListener("click", () => this.mark(button));
    }
    this.holder.addEventListener("keydown", event => this.key(event));
    this.holder.addEventListener("click", event => this.click(event));
    this.holder.addEventListener("dblclick", event => this.enter(event));
    this.holder.addEventListener("pointerover", event => {
      const box = event.target.closest(".box");
      if (box) this.nearEdges(Number(box.dataset.box));
    });
  }

  key(event) {
    const {camera} = this, step = 80;
    const actions = {
      ArrowLeft: () => camera.pan(-step, 0), ArrowRight: () => camera.pan(step, 0),
      ArrowUp: () => camera.pan(0, -step), ArrowDown: () => camera.pan(0, step),
      "+": () => camera.zoom(1.4), "=": () => camera.zoom(1.4), "-": () => camera.zoom(1 / 1.4),
      0: () => camera.fit(), f: () => camera.fit(), "/": () => this.input.focus(),
      n: () => this.step(1), p: () => this.step(-1), Escape: () => this.clear(),
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  }

  click(event) {
    if (this.camera.moved) return;
    const box = event.target.closest(".box"), edge = event.target.closest(".edge");
    if (box) this.choose(Number(box.dataset.box));
    else if (edge) this.chooseTensor(Number(edge.dataset.tensor));
  }

  enter(event) {
    const box = event.target.closest(".box");
    const bodies = box ? this.data.boxes[box.dataset.box].bodies : [];
    if (bodies.length) this.camera.fit(this.frames[bodies[0]].getBBox());
  }

  search(text) {
    const wanted = text.trim().toLowerCase();
    const ways = [
      ([op]) => op === wanted, ([, names]) => names.includes(wanted),
      ([, , tensors]) => tensors.includes(wanted),
    ];
    const way = ways.find(fits => this.texts.some(fits)) ?? ways[0];
    this.find(wanted ? (box, number) => way(this.texts[number]) : null);
    if (this.hits.length) this.count.textContent = `${this.hits.length} found: Enter`;
  }

  mark(button) {
    const wanted = button.dataset.key, pressed = button.getAttribute("aria-pressed") === "true";
    this.input.value = "";
    this.find(pressed ? null : box => box.kind === wanted || box.partition === wanted);
    button.setAttribute("aria-pressed", String(!pressed));
    this.step(1);
  }

  find(fits) {
    for (const button of this.root.querySelectorAll(".legend button")) {
      button.setAttribute("aria-pressed", "false");
    }
    this.hits = [];
    this.data.boxes.forEach((box, number) => {
      const hit = fits !== null && fits(box, number);
      this.boxes[number].classList.toggle("hit", hit);
      if (hit) this.hits.push(number);
    });
    this.holder.classList.toggle("searching", fits !== null);
    this.current = -1;
    this.count.textContent = fits === null ? "" : "nothing found";
  }

  step(by) {
    const {length} = this.hits;
    if (!length) return;
    this.current = this.current < 0 ? 0 : (this.current + by + length) % length;
    this.count.textContent = `${this.current + 1} of ${length}`;
    this.choose(this.hits[this.current], true);
  }

  clear() {
    this.input.value = "";
    this.find(null);
  }

  nearEdges(number) {
    const box = this.data.boxes[number];
    const tensors = new Set([...box.inputs, ...box.captured, ...box.outputs]);
    const own = new Set(box.outputs);
    for (const edge of this.edges) {
      const tensor = Number(edge.dataset.tensor);
      const near = tensors.has(tensor) && (own.has(tensor) || edge.dataset.to === String(number));
      edge.classList.toggle("near", near);
    }
  }

  choose(number, jump = false) {
    this.chosen?.classList.remove("chosen");
    this.chosen = this.boxes[number];
    this.chosen.classList.add("chosen");
    this.nearEdges(number);
    if (jump) this.camera.jump(this.boxes[number]);
    this.showBox(this.data.boxes[number]);
  }

  chooseTensor(number) {
    for (const edge of this.edges) {
      edge.classList.toggle("near", Number(edge.dataset.tensor) === number);
    }
    this.showTensor(this.data.tensors[number]);
  }

  showHelp() {
    this.details.replaceChildren(
      element("h3", {textContent: "Nothing chosen"}),
      element("p", {textContent:
        "Click a node or an edge: its tensors with types and shapes, the kernel or the reason.\n\n" +
        "Drag to move, turn the wheel or pinch to zoom, double-click a node marked ▸ to see its body.\n\n" +
        "In the drawing: arrow keys move, + and - zoom, 0 fits, / searches, n and p go through what " +
        "was found, Escape ends the search."}));
  }

  showBox(box) {
    const told = box.partition ? `claimed by Tenon, ${box.partition}\n${box.note}` : box.note;
    this.details.replaceChildren(
      element("h3", {textContent: `${box.op} ${box.name}`}), element("p", {textContent: told}),
      ...this.section("bodies", box.bodies.map(graph => element("li", {},
        this.link(this.data.graphs[graph].title,
                  () => this.camera.fit(this.frames[graph].getBBox()))))),
      ...this.section("inputs", box.inputs.map(number => this.tensorItem(number, "source"))),
      ...this.section("read by its bodies",
                      box.captured.map(number => this.tensorItem(number, "source"))),
      ...this.section("outputs", box.outputs.map(number => this.tensorItem(number, "readers"))),
      ...this.section("attributes", box.attributes.map(([name, value]) =>
        element("li", {}, `${name} = ${value}`))));
  }

  showTensor(tensor) {
    const boxes = tensor.source >= 0 ? [this.boxItem(tensor.source)] : [];
    this.details.replaceChildren(
      element("h3", {textContent: `tensor ${tensor.name}`}),
      element("p", {textContent: tensor.type || "type and shape unknown"}),
      ...this.section("written by", boxes),
      ...this.section("read by", tensor.readers.map(reader => this.boxItem(reader))));
  }

  section(title, items) {
    return items.length ? [element("h4", {textContent: title}), element("ul", {}, ...items)] : [];
  }

  tensorItem(number, towards) {
    const tensor = this.data.tensors[number];
    const origin = tensor.origin ? ` (${tensor.origin})` : "";
    const item = element("li", {}, tensor.name + origin,
                         element("code", {textContent: tensor.type || "type unknown"}));
    const ends = towards === "source" ? [tensor.source].filter(n => n >= 0) : tensor.readers;
    ends.slice(0, 12).forEach((end, place) => {
      item.append(place ? ", " : towards === "source" ? "from " : "to ", this.boxLink(end));
    });
    if (ends.length > 12) item.append(` and ${ends.length - 12} more`);
    return item;
  }

  boxItem(number) { return element("li", {}, this.boxLink(number)); }

  boxLink(number) {
    const box = this.data.boxes[number];
    return this.link(`${box.op} ${box.name}`, () => this.choose(number, true));
  }

  link(text, action) {
    const button = element("button", {type: "button", textContent: text});
    button.addEventListener("click", action);
    return button;
  }
}

for (const root of document.querySelectorAll(".graph-view")) new GraphView(root);

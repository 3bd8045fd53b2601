// Marks of events in a chart: lines, with numbered flags above the plot; and ticks of checkpoints.

/** Room above the plot for flags. */
export const FLAG_HEIGHT = 14;

const DASHES = { swap: [], rollback: [2, 2], settings: [6, 3], refused: [2, 4], resume: [1, 3], failure: [] };
// Of several marks in one place, the flag has the colour of the gravest.
const GRAVEST = ["failure", "rollback", "refused", "swap", "settings", "resume"];

export class Flags {
  constructor() {
    Object.assign(this, { marks: [], ticks: [], flags: [] });
  }

  take(marks, ticks) {
    [this.marks, this.ticks] = [marks, ticks];
  }

  get isNeeded() {
    return this.marks.length > 0;
  }

  places() {
    return [...this.marks.map((mark) => mark.x), ...this.ticks];
  }

  /** Draws lines and ticks, below the curves. */
  drawLines(u, colour) {
    const { ctx, bbox } = u;
    const pixel = devicePixelRatio;
    ctx.save();
    ctx.lineWidth = pixel;
    ctx.strokeStyle = colour("--muted");
    ctx.beginPath();
    for (const tick of this.ticks.filter((x) => isWithin(u, x))) {
      const x = place(u, tick);
      ctx.moveTo(x, bbox.top + bbox.height);
      ctx.lineTo(x, bbox.top + bbox.height - 5 * pixel);
    }
    ctx.stroke();
    const seen = this.marks.filter((mark) => isWithin(u, mark.x));
    // Too many would hide the curves.
    ctx.globalAlpha = Math.min(1, 20 / seen.length);
    for (const mark of seen) {
      ctx.strokeStyle = colour(`--mark-${mark.tone}`);
      ctx.setLineDash((DASHES[mark.tone] ?? []).map((d) => d * pixel));
      ctx.beginPath();
      ctx.moveTo(place(u, mark.x), bbox.top);
      ctx.lineTo(place(u, mark.x), bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  /** Draws flags; marks whose flags would cover each other share one. */
  drawFlags(u, colour) {
    const { ctx, bbox } = u;
    const pixel = devicePixelRatio;
    ctx.save();
    ctx.font = `600 ${10 * pixel}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    const flag = (marks) => {
      const [first, last] = [marks[0], marks.at(-1)];
      const text = first.number === undefined ? "" : marks.length === 1 ? `${first.number}` : `${first.number}\u2013${last.number}`;
      const width = Math.max((text === "" ? 8 : 13) * pixel, text === "" ? 0 : ctx.measureText(text).width + 6 * pixel);
      const x = (place(u, first.x) + place(u, last.x)) / 2;
      return { marks, text, x, left: x - width / 2, width };
    };
    this.flags = [];
    for (const mark of this.marks.filter((own) => isWithin(u, own.x)).sort((a, b) => a.x - b.x)) {
      let own = flag([mark]);
      while (this.flags.length > 0 && this.flags.at(-1).left + this.flags.at(-1).width + pixel > own.left) {
        own = flag([...this.flags.pop().marks, ...own.marks]);
      }
      this.flags.push(own);
    }
    for (const { marks, text, x, left, width } of this.flags) {
      const tone = GRAVEST.find((own) => marks.some((mark) => mark.tone === own)) ?? "resume";
      ctx.fillStyle = colour(`--mark-${tone}`);
      ctx.fillRect(left, bbox.top - FLAG_HEIGHT * pixel, width, FLAG_HEIGHT * pixel);
      ctx.fillStyle = colour("--on-accent");
      ctx.fillText(text, x, bbox.top - (FLAG_HEIGHT / 2 - 0.5) * pixel);
    }
    ctx.restore();
  }

  /** The marks of flags that are near a place on the screen. */
  near(u, left) {
    const isNear = (mark) => isWithin(u, mark.x) && Math.abs(u.valToPos(mark.x, "x") - left) < 7;
    return this.flags.filter(({ marks }) => marks.some(isNear)).flatMap(({ marks }) => marks);
  }
}

const isWithin = (u, x) => x >= u.scales.x.min && x <= u.scales.x.max;

const place = (u, x) => Math.round(u.valToPos(x, "x", true));

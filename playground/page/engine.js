// The generator, in workers.

// A worker with a generator. One that breaks, for example because there is no memory left, is replaced.
export class Engine {
  constructor(module, source) {
    this.module = module;
    this.url = URL.createObjectURL(new Blob([source], {type: "text/javascript"}));
    this.next = 0;
    this.begin();
  }

  begin() {
    this.waiting = new Map();
    this.worker = new Worker(this.url);
    this.worker.onmessage = ({data}) => {
      const done = this.waiting.get(data.id);
      this.waiting.delete(data.id);
      if (data.broken) this.restart();
      if (done) done(data.broken ? {error: data.broken} : JSON.parse(data.answer));
    };
    this.ready = this.send({module: this.module});
  }

  restart() {
    this.worker.terminate();
    for (const done of this.waiting.values()) done({error: "the generator was started again"});
    this.begin();
  }

  send(message) {
    return new Promise((done) => {
      const id = this.next++;
      this.waiting.set(id, done);
      this.worker.postMessage({id, ...message});
    });
  }

  // Answers a question of package playground. What has no answer has the key error.
  async ask(question) {
    const ready = await this.ready;
    if (ready?.error) return ready;
    return this.send({question: JSON.stringify(question)});
  }
}

// Compiles the generator, which is in the page as base64 of gzip.
export async function compile(base64) {
  const packed = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return WebAssembly.compile(await new Response(stream).arrayBuffer());
}

// Asks for the newest text, one question at a time: texts that are out of date before their turn are left out.
export class Newest {
  constructor(run) { this.run = run; }

  async changed() {
    this.again = true;
    if (this.busy) return;
    this.busy = true;
    try {
      while (this.again) {
        this.again = false;
        await this.run();
      }
    } finally {
      this.busy = false;
    }
  }
}

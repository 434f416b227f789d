// The worker of the page: it runs the generator, and answers one question after the other.
import "wasm_exec";

onmessage = async ({data}) => {
  try {
    if (data.module) {
      const go = new Go();
      const instance = await WebAssembly.instantiate(data.module, go.importObject);
      go.run(instance); // until the page is closed
      postMessage({id: data.id, answer: "null"});
    } else {
      postMessage({id: data.id, answer: outboxgen(data.question)});
    }
  } catch (error) {
    postMessage({id: data.id, broken: String(error)});
  }
};

// A Kafka cluster of Fenceline's laboratory for a test, with faults and situations, over fetch alone. Needs a running
// `fenceline lab`.

const ADDRESS = process.env.FENCELINE_LAB ?? 'http://127.0.0.1:8090';

export class Laboratory {
  #path;
  #release;

  constructor(cluster) {
    this.#path = `/v1/clusters/${cluster.id}`;
    // Settings by librdkafka's names.
    this.settings = cluster.client_settings.librdkafka;
  }

  // A cluster that ends with `close`, or with this process, however it ends.
  static async start(nodes = 3) {
    const made = new Laboratory(await send('POST', '/v1/clusters', { nodes }));
    const controller = new AbortController();
    made.#release = () => controller.abort();
    await fetch(`${ADDRESS}${made.#path}/lease`, { signal: controller.signal });
    return made;
  }

  async close() {
    await send('DELETE', this.#path);
    this.#release();
  }

  async topic() {
    return (await send('POST', `${this.#path}/topics`, {})).name;
  }

  // Inject a fault; the laboratory's page has the kinds and their arguments.
  fault(kind, args = {}) {
    return send('POST', `${this.#path}/faults`, { kind, ...args });
  }

  hits(fault) {
    return send('GET', `${this.#path}/faults/${fault.id}`).then((found) => found.hits);
  }

  // End all faults, after each test.
  endFaults() {
    return send('DELETE', `${this.#path}/faults`);
  }

  // Make a situation true; returns what was made true.
  situation(name, args = {}) {
    return send('POST', `${this.#path}/situations/${name}`, args);
  }
}

async function send(method, path, body) {
  const response = await fetch(ADDRESS + path, {
    method,
    headers: { 'Content-Type': 'application/json' },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const content = await response.text();
  if (!response.ok) throw new Error(`${method} ${path}: ${content}`);
  return content ? JSON.parse(content) : undefined;
}

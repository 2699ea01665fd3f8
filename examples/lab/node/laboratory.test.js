import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import confluent from '@confluentinc/kafka-javascript';

import { Laboratory } from './laboratory.js';

const { Kafka } = confluent.KafkaJS;
let lab;
let kafka;

before(async () => {
  lab = await Laboratory.start(3);
  kafka = new Kafka({ ...lab.settings, log_level: 0 });
});
afterEach(() => lab.endFaults());
after(() => lab.close());

async function produce(topic, values) {
  const producer = kafka.producer({ acks: -1, 'enable.idempotence': true, 'linger.ms': 0 });
  await producer.connect();
  try {
    for (const value of values) await producer.send({ topic, messages: [{ value }] });
  } finally {
    await producer.disconnect();
  }
}

// Process a topic until all expected values were seen; all values, in order.
async function process(topic, group, isDone) {
  const consumer = kafka.consumer({ 'group.id': group, 'auto.offset.reset': 'earliest' });
  const seen = [];
  await consumer.connect();
  await consumer.subscribe({ topic });
  await consumer.run({ eachMessage: async ({ message }) => void seen.push(message.value.toString()) });
  try {
    while (!isDone(seen)) await sleep(20);
  } finally {
    await consumer.disconnect();
  }
  return seen;
}

const numbered = (stem, count) => Array.from({ length: count }, (_, number) => `${stem}-${number}`);

test('lost answers duplicate nothing', { timeout: 90_000 }, async () => {
  const topic = await lab.topic();
  const fault = await lab.fault('lose_answers', { api: 'Produce', topic, times: 2 });
  const values = numbered('value', 20);
  await produce(topic, values);
  assert.ok((await lab.hits(fault)) > 0, 'no answer was lost');
  assert.deepEqual(await process(topic, `g-${topic}`, (seen) => seen.length >= values.length), values);
});

test('it processes at least once over an unclean election', { timeout: 90_000 }, async () => {
  const topic = await lab.topic();
  const expected = new Set(numbered('before', 20));
  let isWritten = false;
  const processing = process(
    topic,
    `g-${topic}`,
    (seen) => isWritten && [...expected].every((value) => seen.includes(value)),
  );
  await produce(topic, expected);
  const { lost } = await lab.situation('unclean_election', { topic, lose: 20 });
  assert.equal(lost.length, 20);
  for (const each of lost) expected.delete(each.value.text);
  for (const value of numbered('after', 20)) expected.add(value);
  await produce(topic, numbered('after', 20));
  isWritten = true;
  await processing;
});

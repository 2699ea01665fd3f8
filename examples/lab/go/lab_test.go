package lab

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const wait = 60 * time.Second

func client(t *testing.T, cluster *Cluster, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	made, err := kgo.NewClient(append(options, kgo.SeedBrokers(cluster.Bootstrap...))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(made.Close)
	return made
}

// An application that keeps offset and leader epoch in its own database learns that the log has changed below it.
func TestAConsumerNoticesATruncation(t *testing.T) {
	cluster := Start(t, 3)
	topic := cluster.Topic()
	var made UncleanElection
	cluster.Situation("truncation_and_growth", Arguments{"topic": topic, "lose": 20, "grow": 40}, &made)

	// As if it had read 15 of the records that are lost now: the offset exists again, in another history.
	position := kgo.NewOffset().At(15).WithEpoch(made.OldEpoch)
	consumer := client(t, cluster, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: position}}))

	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	for ctx.Err() == nil {
		for _, each := range consumer.PollFetches(ctx).Errors() {
			var loss *kgo.ErrDataLoss
			if errors.As(each.Err, &loss) {
				if loss.ResetTo != made.DivergentOffset {
					t.Fatalf("reset to %d, and the logs diverge at %d", loss.ResetTo, made.DivergentOffset)
				}
				return
			}
		}
	}
	t.Fatal("the consumer did not notice")
}

// An idempotent producer whose answers get lost writes each record once.
func TestLostAnswersDuplicateNothing(t *testing.T) {
	cluster := Start(t, 3)
	topic := cluster.Topic()
	producer := client(t, cluster, kgo.DefaultProduceTopic(topic))
	fault := cluster.Fault("lose_answers", Arguments{"api": "Produce", "topic": topic, "times": 2})

	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	const count = 20
	for number := range count {
		record := &kgo.Record{Value: fmt.Appendf(nil, "value-%d", number)}
		if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if hits := cluster.Hits(fault); hits == 0 {
		t.Fatal("no answer was lost")
	}

	consumer := client(t, cluster, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	var values []string
	for len(values) < count && ctx.Err() == nil {
		consumer.PollFetches(ctx).EachRecord(func(record *kgo.Record) {
			values = append(values, string(record.Value))
		})
	}
	for number, value := range values {
		if value != fmt.Sprintf("value-%d", number) {
			t.Fatalf("record %d is %s: %v", number, value, values)
		}
	}
}

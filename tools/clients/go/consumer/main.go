// A consumer on franz-go, as its documentation shows it: prints each value, and says what the client tells.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	stopping, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA_BOOTSTRAP_SERVERS"), ",")...),
		kgo.ConsumerGroup(os.Getenv("KAFKA_GROUP")),
		kgo.ConsumeTopics(os.Getenv("KAFKA_TOPIC")),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	// Leaves the group, with a commit of what was processed.
	defer client.Close()
	for {
		fetches := client.PollFetches(stopping)
		if stopping.Err() != nil {
			break
		}
		fetches.EachError(func(topic string, partition int32, err error) {
			var loss *kgo.ErrDataLoss
			if errors.As(err, &loss) {
				fmt.Fprintln(os.Stderr, "noticed:", loss)
				return
			}
			fmt.Fprintf(os.Stderr, "error: %s-%d: %v\n", topic, partition, err)
		})
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Println(strings.ToValidUTF8(string(record.Value), "?"))
		})
	}
	if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
	}
}

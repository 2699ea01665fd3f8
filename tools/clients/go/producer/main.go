// A producer on franz-go: values from standard input; prints each that is acknowledged.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA_BOOTSTRAP_SERVERS"), ",")...),
		kgo.DefaultProduceTopic(os.Getenv("KAFKA_TOPIC")),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	defer client.Close()
	values := bufio.NewScanner(os.Stdin)
	for values.Scan() {
		client.Produce(context.Background(), kgo.StringRecord(values.Text()), func(record *kgo.Record, err error) {
			if err != nil {
				fmt.Fprintf(os.Stderr, "error: %s: %v\n", record.Value, err)
				return
			}
			fmt.Println(string(record.Value))
		})
	}
	if err := client.Flush(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
	}
}

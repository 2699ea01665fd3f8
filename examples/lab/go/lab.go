// Package lab gives a Go test a Kafka cluster of Fenceline's laboratory, with faults and situations. Needs a running
// `fenceline lab`.
package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

// Cluster is a cluster for one test; it ends with the test, or with the process, however that ends.
type Cluster struct {
	t    testing.TB
	path string
	// Bootstrap has the addresses of the brokers.
	Bootstrap []string
}

// Arguments of a request; the laboratory's page describes them.
type Arguments map[string]any

// Value is the key or value of a record.
type Value struct {
	Text   string `json:"text"`
	Base64 string `json:"base64"`
}

// UncleanElection is what the situations unclean_election and truncation_and_growth return.
type UncleanElection struct {
	DivergentOffset int64 `json:"divergent_offset"`
	OldEpoch        int32 `json:"old_epoch"`
	NewEpoch        int32 `json:"new_epoch"`
	Lost            []struct {
		Offset int64 `json:"offset"`
		Value  Value `json:"value"`
	} `json:"lost"`
}

// Fault is a fault in force.
type Fault struct {
	ID   int `json:"id"`
	Hits int `json:"hits"`
}

// Start starts a cluster. On a failing test its timeline is logged.
func Start(t testing.TB, nodes int) *Cluster {
	t.Helper()
	address := os.Getenv("FENCELINE_LAB")
	if address == "" {
		address = "http://127.0.0.1:8090"
	}
	c := &Cluster{t: t, path: address + "/v1/clusters"}
	var made struct {
		ID        string `json:"id"`
		Bootstrap string `json:"bootstrap_servers"`
	}
	c.call("POST", "", Arguments{"nodes": nodes}, &made)
	c.path += "/" + made.ID
	c.Bootstrap = strings.Split(made.Bootstrap, ",")

	// The cluster ends as soon as this request does.
	ctx, release := context.WithCancel(context.Background())
	request, err := http.NewRequestWithContext(ctx, "GET", c.path+"/lease", nil)
	if err != nil {
		t.Fatal(err)
	}
	lease, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.text("/timeline/text"))
		}
		c.call("DELETE", "", nil, nil)
		release()
		lease.Body.Close()
	})
	return c
}

// Topic creates a topic with a new name.
func (c *Cluster) Topic() string {
	c.t.Helper()
	var made struct{ Name string }
	c.call("POST", "/topics", Arguments{}, &made)
	return made.Name
}

// Fault injects a fault, which ends with the test.
func (c *Cluster) Fault(kind string, arguments Arguments) Fault {
	c.t.Helper()
	body := Arguments{"kind": kind}
	for name, value := range arguments {
		body[name] = value
	}
	var made Fault
	c.call("POST", "/faults", body, &made)
	return made
}

// Hits returns how many requests a fault has affected.
func (c *Cluster) Hits(fault Fault) int {
	c.t.Helper()
	var found Fault
	c.call("GET", fmt.Sprintf("/faults/%d", fault.ID), nil, &found)
	return found.Hits
}

// Situation makes a situation true; result gets what was made true, and may be nil.
func (c *Cluster) Situation(name string, arguments Arguments, result any) {
	c.t.Helper()
	c.call("POST", "/situations/"+name, arguments, result)
}

func (c *Cluster) text(path string) string {
	response, err := http.Get(c.path + path)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	content, _ := io.ReadAll(response.Body)
	return string(content)
}

func (c *Cluster) call(method, path string, arguments Arguments, result any) {
	c.t.Helper()
	var body io.Reader
	if arguments != nil {
		content, err := json.Marshal(arguments)
		if err != nil {
			c.t.Fatal(err)
		}
		body = bytes.NewReader(content)
	}
	request, err := http.NewRequest(method, c.path+path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		c.t.Fatalf("is `fenceline lab` running? %v", err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	if response.StatusCode >= 400 {
		c.t.Fatalf("%s %s: %s", method, path, content)
	}
	if result != nil {
		if err := json.Unmarshal(content, result); err != nil {
			c.t.Fatalf("%s %s: %v: %s", method, path, err, content)
		}
	}
}

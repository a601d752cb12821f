package mcpshim

import (
	"bufio"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"subjectbroker/worker"
	"subjectbroker/worker/workertest"
)

// document is 1 MiB of prose with what needs escaping in it.
func document() string {
	return strings.Repeat("A line of text with \"quotes\", a tab\tand Grüße.\n", 1<<20/48)[:1<<20]
}

// BenchmarkDocument is a read of 1 MiB through the shim, from the client's line
// to the client's line, with the broker in this process too. The limit is four
// times BenchmarkDocumentJSON.
func BenchmarkDocument(b *testing.B) {
	b.SetBytes(1 << 20)
	benchmarkRead(b, document())
}

// BenchmarkSmall is the same with hardly any content: what a call costs.
func BenchmarkSmall(b *testing.B) { benchmarkRead(b, "small") }

func benchmarkRead(b *testing.B, content string) {
	broker := workertest.Start(b)
	broker.Put("doc", "text", []byte(content))
	broker.Allow("worker", "doc")
	inReader, inWriter := io.Pipe()
	outReader, outWriter := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Serve(b.Context(), Config{Worker: worker.Config{Places: broker.Places, Subject: "worker", Version: "1"}, In: inReader, Out: outWriter})
	}()
	answers := bufio.NewReaderSize(outReader, 1<<16)
	exchange := func(line string) (bytes int) {
		if _, err := io.WriteString(inWriter, line+"\n"); err != nil {
			b.Fatal(err)
		}
		for {
			part, err := answers.ReadSlice('\n')
			bytes += len(part)
			if err == nil {
				return bytes
			}
			if err != bufio.ErrBufferFull {
				b.Fatal(err)
			}
		}
	}
	exchange(initialize)
	for b.Loop() {
		if n := exchange(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":"doc"}}}`); n < 2*len(content) {
			b.Fatalf("%d bytes", n)
		}
	}
	inWriter.Close()
	<-done
}

// BenchmarkDocumentJSON is one encoding and one decoding of the same document.
func BenchmarkDocumentJSON(b *testing.B) {
	content := document()
	b.SetBytes(1 << 20)
	for b.Loop() {
		encoded, err := json.Marshal(map[string]string{"content": content})
		if err != nil {
			b.Fatal(err)
		}
		var decoded map[string]string
		if err := json.Unmarshal(encoded, &decoded); err != nil {
			b.Fatal(err)
		}
	}
}

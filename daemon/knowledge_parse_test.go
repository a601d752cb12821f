package daemon

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// parseSlowly reads a row as any JSON, writes it again, and compares.
func parseSlowly(row []byte) (e knowledgeEntry, ok bool) {
	if json.Unmarshal(row, &e) != nil {
		return e, false
	}
	again, err := encodeEntry(e)
	return e, err == nil && bytes.Equal(again, row)
}

// TestParseEntry reads rows, whole ones and spoilt ones, exactly as encoding/json does.
func TestParseEntry(t *testing.T) {
	whole := knowledgeEntry{V: 1}
	fields := reflect.ValueOf(&whole).Elem()
	for i := range fields.NumField() { // also those that are added one day
		switch field := fields.Field(i); field.Kind() {
		case reflect.String:
			field.SetString("a \"quoted\" <b> & \\ \u2028 ü \n end")
		case reflect.Int64:
			field.SetInt(-1234567890123)
		case reflect.Slice:
			field.Set(reflect.ValueOf([]string{"one", "", "drei\t"}))
		case reflect.Int:
		default:
			t.Fatalf("%s has a kind that this does not fill", fields.Type().Field(i).Name)
		}
	}
	entries := []knowledgeEntry{
		whole,
		{V: 1, ID: "a", Tenant: "t", Kind: "note", Created: 1},
		{V: 1, ID: "a", Tenant: "t", Kind: "note", Title: "plain", Text: "plain text", Tags: []string{"x"}, Created: 1 << 60, Subject: "s", Run: "r"},
		{V: 1, ID: "a", Tenant: "t", Kind: "note", Title: "数据 🚀 \x7f \ufffd", Created: 0, Key: "k", Supersedes: "b"},
		{V: 1, Forgotten: 5},
	}
	for _, e := range entries {
		row, err := encodeEntry(e)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseEntry(row)
		if diff := cmp.Diff(e, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", row, err, diff)
		}
	}

	draw := rand.New(rand.NewPCG(1, 2))
	spoilt := 0
	for range 15_000 {
		row, err := encodeEntry(entries[draw.IntN(len(entries))])
		if err != nil {
			t.Fatal(err)
		}
		for range 1 + draw.IntN(2) {
			at, letters := draw.IntN(len(row)), `"\,:{}[]0-1 eu<`+"\x00\xff\xe2\x80\xa8n"
			switch draw.IntN(4) {
			case 0:
				row[at] = letters[draw.IntN(len(letters))]
			case 1:
				row = append(row[:at], row[at+1:]...)
			case 2:
				row = append(row[:at], append([]byte{letters[draw.IntN(len(letters))]}, row[at:]...)...)
			default:
				row = row[:max(at, 1)]
			}
			if len(row) == 0 {
				row = []byte("{")
			}
		}
		want, ok := parseSlowly(row)
		got, err := parseEntry(row)
		if ok != (err == nil) || ok && !cmp.Equal(want, got) {
			t.Fatalf("%q: %v, and encoding/json says %v", row, err, ok)
		}
		if !ok {
			spoilt++
		}
	}
	if spoilt < 7_500 || spoilt == 15_000 {
		t.Errorf("%d rows were spoilt: this says nothing", spoilt)
	}
}

package grants

import (
	"encoding/json"
	"fmt"
	"time"
)

// Tenant is a body of knowledge. Who may read it or write to it is said by grants
// of memory.read and memory.write.
type Tenant struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created,omitzero"`
	Owner   string    `json:"owner,omitempty"` // owner of the document that declared it; empty: no document did
}

// Validate returns an error that names the field that is wrong.
func (t *Tenant) Validate() error {
	if err := CheckName(t.Name); err != nil {
		return fmt.Errorf("name of the tenant: %w", err)
	}
	return checkStored(t.Owner, t.Created)
}

type tenantRow struct {
	V int `json:"v"`
	Tenant
}

// EncodeTenant returns the row that [DecodeTenant] reads. The same tenant gives the
// same bytes.
func EncodeTenant(t Tenant) ([]byte, error) {
	if err := t.Validate(); err != nil {
		return nil, fmt.Errorf("encoding tenant: %w", err)
	}
	t.Created = t.Created.UTC()
	return json.Marshal(tenantRow{rowVersion, t})
}

// DecodeTenant reads a row of [EncodeTenant] and nothing else: what would not be
// written byte for byte the same is refused.
func DecodeTenant(row []byte) (Tenant, error) {
	var decoded tenantRow
	return decodeRow("tenant", row, &decoded, &decoded.Tenant, EncodeTenant)
}

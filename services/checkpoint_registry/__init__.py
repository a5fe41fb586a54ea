"""Models, their checkpoint trees and heads, the promotion gate, and the leases by which engines are found."""

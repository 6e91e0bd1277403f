"""Hidden Chow-Liu trees and mixtures by EM, tilted where there is a label."""
